//! Draws what the benches have found: horizontal bars, a picture for each question.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

type Failure = Box<dyn Error>;

/// Draws what the benches have found
#[derive(Parser)]
struct Arguments {
    /// The folder with the figures that they wrote
    from: PathBuf,
    /// The folder for the pictures
    to: PathBuf,
}

const OURS: RGBColor = RGBColor(0x1f, 0x5f, 0xb0);
const OURS_AT_REST: RGBColor = RGBColor(0x9d, 0xbf, 0xe6);
const GOVERNOR: RGBColor = RGBColor(0xc7, 0x7d, 0x1e);
const GOVERNOR_AT_REST: RGBColor = RGBColor(0xee, 0xc9, 0x95);
const OTHERS: RGBColor = RGBColor(0x8b, 0x94, 0x9e);
const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);

struct Bar {
    name: String,
    value: f64,
    text: String,
    colour: RGBColor,
}

/// Bars that are compared with one another.
struct Panel {
    title: String,
    bars: Vec<Bar>,
}

/// The same for all panels of a picture.
#[derive(Clone, Copy)]
enum Scale {
    /// From zero; what is more than five times the first of governor as it comes is cut off.
    Linear,
    /// From ten.
    Logarithmic,
}

fn main() -> Result<(), Failure> {
    let Arguments { from, to } = Arguments::parse();
    fs::create_dir_all(&to)?;
    let peers = read(&from.join("peers.json"))?;
    let times = |rows: &[&str]| rows.iter().map(|row| time_panel(&peers, row)).collect::<Result<Vec<_>, _>>();
    for (file, title, rows) in [
        ("direct", "One bucket, no keys: ns a check", &["direct, allowed", "direct, denied"][..]),
        ("hot-key", "One key of 20 bytes: ns a check", &["string, hot key, allowed", "string, hot key, denied"]),
        ("10k-keys", "10,000 keys of 20 bytes: ns a check", &["string, 10k uniform, allowed"]),
        ("1m-keys", "A million keys of 20 bytes: ns a check", &["string, 1M zipf 1.0, allowed"]),
        (
            "two-threads",
            "Two threads: ns of wall time for each check of both",
            &["string, same key, allowed, 2 threads", "string, own keys, allowed, 2 threads"],
        ),
    ] {
        draw(&to.join(file).with_extension("svg"), title, &times(rows)?, Scale::Linear)?;
    }
    for (name, title) in [
        ("latency", "A check while keys come and go, a million in use (log scale)"),
        ("latency-10m", "A check while keys come and go, ten million in use (log scale)"),
    ] {
        let rows = read(&from.join(name).with_extension("json"))?;
        draw(&to.join(name).with_extension("svg"), title, &latency_panels(&rows)?, Scale::Logarithmic)?;
    }
    let (memory, of_peers) = (read(&from.join("memory.json"))?, read(&from.join("peers-memory.json"))?);
    let panels = memory_panels(&memory, &of_peers)?;
    draw(&to.join("memory.svg"), "Bytes for each key of 20 bytes", &panels, Scale::Linear)
}

fn read(path: &Path) -> Result<Vec<Value>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

fn text<'a>(row: &'a Value, column: &str) -> Result<&'a str, Failure> {
    row[column].as_str().ok_or_else(|| format!("no words in the column «{column}» of {row}").into())
}

fn number(row: &Value, column: &str) -> Result<f64, Failure> {
    row[column].as_f64().ok_or_else(|| format!("no number in the column «{column}» of {row}").into())
}

/// Rows of a group, the quickest first.
fn time_panel(rows: &[Value], group: &str) -> Result<Panel, Failure> {
    let mut bars = Vec::new();
    for row in rows.iter().filter(|row| row["row"] == group) {
        let (ns, ratio) = (number(row, "ns")?, number(row, "ratio")?);
        let text_of = format!("{} ns ({ratio:.2})", short(ns));
        bars.push(bar(text(row, "what")?, ns, text_of));
    }
    panel(format!("{group} (in brackets: ratio to governor as it comes)"), bars)
}

fn memory_panels(memory: &[Value], of_peers: &[Value]) -> Result<Vec<Panel>, Failure> {
    let bytes = |name: &str, bytes: f64| bar(name, bytes, format!("{bytes:.0}"));
    let mut first = Vec::new();
    for row in of_peers {
        // A sketch: it keeps no keys.
        if !text(row, "bytes a key")?.starts_with("pingora") {
            first.push(bytes(text(row, "bytes a key")?, number(row, "1M keys")?));
        }
    }
    let mut panels = vec![panel("a million keys, one quota".to_owned(), first)?];
    for (title, quotas, column) in [
        ("ten million keys, one quota", 1.0, "10M keys"),
        ("a million keys, three quotas (governor: three limiters)", 3.0, "1M keys"),
        ("ten million keys, three quotas (governor: three limiters)", 3.0, "10M keys"),
    ] {
        let mut bars = Vec::new();
        for row in memory.iter().filter(|row| row["keys"] == "20-byte string") {
            if number(row, "quotas")? == quotas {
                bars.push(bytes(text(row, "bytes a key")?, number(row, column)?));
            }
        }
        panels.push(panel(title.to_owned(), bars)?);
    }
    Ok(panels)
}

/// A panel for each quantile of checks: each limiter at rest and while keys come and go.
fn latency_panels(rows: &[Value]) -> Result<Vec<Panel>, Failure> {
    let rows: Vec<&Value> = rows.iter().filter(|row| row["of"] == "checks").collect();
    ["p50", "p99", "p99.9", "p99.99", "max"]
        .into_iter()
        .map(|quantile| {
            let mut bars = Vec::new();
            for row in rows.iter().copied().filter(|row| row[""] != "times as long") {
                let (name, state, ns) = (text(row, "ns")?, text(row, "")?, number(row, quantile)?);
                let mut bar = bar(name, ns, duration(ns));
                bar.name = format!("{}, {state}", bar.name);
                if state == "at rest" {
                    bar.colour = if name == "governor" { GOVERNOR_AT_REST } else { OURS_AT_REST };
                } else {
                    let times = rows.iter().copied().find(|row| row["ns"] == name && row[""] == "times as long");
                    let times = times.ok_or_else(|| format!("no ratios for {name}"))?;
                    bar.text = format!("{} ({:.1} × at rest)", bar.text, number(times, quantile)?);
                }
                bars.push(bar);
            }
            Ok(Panel { title: quantile.to_owned(), bars })
        })
        .collect()
}

fn bar(name: &str, value: f64, text: String) -> Bar {
    let is_ours = ["sharded", "fixed", "tollgate"].iter().any(|ours| name.starts_with(ours));
    let colour = if is_ours {
        OURS
    } else if name.starts_with("governor") {
        GOVERNOR
    } else {
        OTHERS
    };
    let name = if is_ours && !name.starts_with("tollgate") { format!("tollgate, {name}") } else { name.to_owned() };
    Bar { name, value, text, colour }
}

/// Sorted.
fn panel(title: String, mut bars: Vec<Bar>) -> Result<Panel, Failure> {
    if bars.is_empty() {
        return Err(format!("no figures for «{title}»").into());
    }
    bars.sort_by(|a, b| a.value.total_cmp(&b.value));
    Ok(Panel { title, bars })
}

/// Digits that mean something.
fn short(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// In a unit that suits it.
fn duration(nanos: f64) -> String {
    match nanos {
        _ if nanos < 1e3 => format!("{nanos:.0} ns"),
        _ if nanos < 1e6 => format!("{} µs", short(nanos / 1e3)),
        _ => format!("{} ms", short(nanos / 1e6)),
    }
}

const WIDTH: i32 = 890;
const NAMES: i32 = 250;
const TEXTS: i32 = 170;
const BAR: i32 = 16;
const STEP: i32 = 22;
const PANEL: i32 = 34;
const TITLE: i32 = 38;

impl Scale {
    /// How long the bar of each value is, of 1, and whether it is cut off.
    fn lengths(self, panel: &Panel, all: &[Panel]) -> Vec<(f64, bool)> {
        let bars = || all.iter().flat_map(|panel| &panel.bars);
        let most = bars().map(|bar| bar.value).fold(0.0, f64::max);
        match self {
            Self::Linear => {
                let end = bars().find(|bar| bar.name == "governor").map_or(most, |bar| most.min(5.0 * bar.value));
                panel.bars.iter().map(|bar| ((bar.value / end).min(1.0), bar.value > end)).collect()
            }
            Self::Logarithmic => {
                let decades = (most / 10.0).log10();
                panel.bars.iter().map(|bar| (((bar.value / 10.0).log10() / decades).clamp(0.0, 1.0), false)).collect()
            }
        }
    }
}

fn draw(path: &Path, title: &str, panels: &[Panel], scale: Scale) -> Result<(), Failure> {
    let height: i32 = TITLE + panels.iter().map(|panel| PANEL + panel.bars.len() as i32 * STEP).sum::<i32>() + 12;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let write = |text: &str, size: f64, style: FontStyle, place: (i32, i32), h_pos: HPos| {
        let style = TextStyle::from(("sans-serif", size).into_font().style(style))
            .color(&INK)
            .pos(Pos { h_pos, v_pos: VPos::Center });
        area.draw(&Text::new(text.to_owned(), place, style))
    };
    write(title, 21.0, FontStyle::Bold, (16, TITLE / 2 + 4), HPos::Left)?;
    let mut top = TITLE;
    for panel in panels {
        write(&panel.title, 16.0, FontStyle::Italic, (16, top + PANEL / 2 + 4), HPos::Left)?;
        top += PANEL;
        for (bar, (length, is_cut)) in panel.bars.iter().zip(scale.lengths(panel, panels)) {
            let middle = top + STEP / 2;
            let end = NAMES + 1 + (length * f64::from(WIDTH - NAMES - TEXTS)) as i32;
            write(&bar.name, 15.0, FontStyle::Normal, (NAMES - 8, middle), HPos::Right)?;
            let (upper, lower) = (middle - BAR / 2, middle + BAR / 2);
            area.draw(&Rectangle::new([(NAMES, upper), (end, lower)], bar.colour.filled()))?;
            if is_cut {
                let gap = [(end - 24, lower), (end - 16, upper), (end - 10, upper), (end - 18, lower)];
                area.draw(&Polygon::new(gap, WHITE.filled()))?;
            }
            write(&bar.text, 15.0, FontStyle::Normal, (end + 6, middle), HPos::Left)?;
            top += STEP;
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_they_say_until_they_are_cut_off() -> Result<(), Failure> {
        let bars =
            [("sharded", 20.0), ("governor", 40.0), ("slow", 400.0)].map(|(name, ns)| bar(name, ns, String::new()));
        let panels = [panel("ns".to_owned(), bars.into())?];
        assert_eq!(Scale::Linear.lengths(&panels[0], &panels), [(0.1, false), (0.2, false), (1.0, true)]);
        Ok(())
    }

    #[test]
    fn each_decade_is_as_long_as_the_next() -> Result<(), Failure> {
        let bars = [10.0, 100.0, 1_000.0].map(|ns| bar("fixed", ns, String::new()));
        let panels = [panel("p50".to_owned(), bars.into())?];
        assert_eq!(Scale::Logarithmic.lengths(&panels[0], &panels), [(0.0, false), (0.5, false), (1.0, false)]);
        Ok(())
    }

    #[test]
    fn durations_have_a_unit_that_suits_them() {
        assert_eq!([559.0, 87_231.0, 12_410_879.0].map(duration), ["559 ns", "87.2 µs", "12.4 ms"]);
    }
}
