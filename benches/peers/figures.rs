//! A table of figures: markdown for people, JSON for the program that draws them.

use std::fmt;
use std::fs;
use std::path::Path;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value};

pub struct Figures {
    header: Vec<&'static str>,
    /// So many columns are words.
    words: usize,
    rows: Vec<Vec<String>>,
}

impl Figures {
    pub fn new(header: impl IntoIterator<Item = &'static str>, words: usize) -> Self {
        Self { header: header.into_iter().collect(), words, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes an array with an object for each row, by the names of the columns, if there is somewhere to write it to.
    pub fn save(&self, path: Option<&Path>) {
        let Some(path) = path else { return };
        let cell = |(column, cell): (usize, &String)| match cell.parse::<f64>() {
            Ok(number) if column >= self.words => Value::from(number),
            _ => Value::from(cell.as_str()),
        };
        let object = |row: &Vec<String>| -> Value {
            let names = self.header.iter().map(|name| (*name).to_owned());
            names.zip(row.iter().enumerate().map(cell)).collect::<Map<_, _>>().into()
        };
        let text = Value::from(self.rows.iter().map(object).collect::<Vec<_>>()).to_string();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).expect("a folder that can be made");
        }
        fs::write(path, text).expect("a file that can be written");
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        table.set_header(&self.header);
        table.add_rows(&self.rows);
        for column in table.column_iter_mut().skip(self.words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.fmt(f)
    }
}
