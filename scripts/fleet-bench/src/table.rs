//! Tables in markdown.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;

use crate::load::Record;
use crate::peers::Failure;

pub fn table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// How long answers took, in nanoseconds.
pub fn latencies(records: &[Record]) -> Result<Histogram<u64>, Failure> {
    let mut histogram = Histogram::new(3)?;
    for record in records {
        // Grows as needed, which `saturating_record` does not.
        histogram.record(record.answered - record.asked)?;
    }
    Ok(histogram)
}

/// In a unit that suits it.
pub fn duration(nanos: f64) -> String {
    match nanos {
        _ if nanos < 1e3 => format!("{nanos:.0} ns"),
        _ if nanos < 1e6 => format!("{:.1} µs", nanos / 1e3),
        _ if nanos < 1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

/// The median, and the slow ones.
pub fn quantiles(histogram: &Histogram<u64>) -> [String; 4] {
    [0.5, 0.99, 0.999, 1.0].map(|quantile| duration(histogram.value_at_quantile(quantile) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Verdict;

    #[test]
    fn slow_answers_are_not_cut_off() {
        let record = |answered| Record { client: 0, asked: 1, answered, verdict: Verdict::Admit };
        let histogram = latencies(&[record(101), record(3_000_000_001)]).expect("two records");
        assert_eq!(quantiles(&histogram), ["100 ns", "3.00 s", "3.00 s", "3.00 s"]);
    }
}
