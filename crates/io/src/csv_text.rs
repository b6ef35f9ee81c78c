//! Writes tables as CSV (RFC 4180). Labels may contain any text.

use csv::{QuoteStyle, Writer, WriterBuilder};

/// How labels are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsvLabels {
    /// Unchanged.
    Exact,
    /// With an apostrophe before labels that a spreadsheet would interpret as a formula, and before labels that start
    /// with an apostrophe, so that removing one apostrophe restores the label.
    SpreadsheetSafe,
}

/// A table under construction.
#[derive(Debug)]
pub struct CsvTable {
    writer: Writer<Vec<u8>>,
    labels: CsvLabels,
}

impl CsvTable {
    /// Creates a table with these columns.
    pub fn new<'c>(columns: impl IntoIterator<Item = &'c str>, labels: CsvLabels) -> Self {
        let quotes = match labels {
            CsvLabels::Exact => QuoteStyle::Necessary,
            // In locales that use a different separator, part of an unquoted label could become a separate cell.
            CsvLabels::SpreadsheetSafe => QuoteStyle::NonNumeric,
        };
        let writer = WriterBuilder::new().flexible(true).quote_style(quotes).from_writer(Vec::new());
        let mut table = Self { writer, labels };
        table.values(columns);
        table.end_row();
        table
    }

    /// Appends a row: labels, then values.
    pub fn row<'l>(
        &mut self,
        labels: impl IntoIterator<Item = &'l str>,
        values: impl IntoIterator<Item = impl AsRef<str>>,
    ) {
        self.labels(labels);
        self.values(values);
        self.end_row();
    }

    /// Appends labels to the current row.
    pub fn labels<'l>(&mut self, labels: impl IntoIterator<Item = &'l str>) {
        for label in labels {
            match self.labels {
                CsvLabels::SpreadsheetSafe if is_formula(label) => self.values([format!("'{label}")]),
                _ => self.values([label]),
            }
        }
    }

    /// Appends numbers, or other text that hooklens generates, to the current row.
    pub fn values(&mut self, values: impl IntoIterator<Item = impl AsRef<str>>) {
        for value in values {
            let written = self.writer.write_field(value.as_ref());
            debug_assert!(written.is_ok(), "writing a field to memory can't fail");
        }
    }

    /// Ends the current row.
    pub fn end_row(&mut self) {
        let written = self.writer.write_record(None::<&[u8]>);
        debug_assert!(written.is_ok(), "writing a row to memory can't fail");
    }

    /// Returns the table as text.
    pub fn finish(self) -> String {
        let bytes = self.writer.into_inner().unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// Whether a spreadsheet might evaluate a cell instead of showing it. The full-width signs come from East Asian
/// keyboards.
fn is_formula(label: &str) -> bool {
    let signs = ['=', '+', '-', '@', '＝', '＋', '－', '＠', '\''];
    label.starts_with(['\t', '\r', '\n']) || label.trim_start().starts_with(signs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Vec<String>> {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
        reader.records().map(|record| record.unwrap().iter().map(str::to_string).collect()).collect()
    }

    #[test]
    fn labels_are_read_back() {
        let labels = ["a\nb", "a,b", "\"", "=1+1", " -2", "@x", "'", "", "\u{202e}<b>", "\r", "＝1"];
        for kind in [CsvLabels::Exact, CsvLabels::SpreadsheetSafe] {
            let mut table = CsvTable::new(["label", "value"], kind);
            labels.iter().for_each(|label| table.row([*label], ["-0.5"]));
            let rows = read(&table.finish());
            assert_eq!(rows[0], ["label", "value"]);
            assert_eq!(rows.len(), labels.len() + 1);
            for (row, label) in rows[1..].iter().zip(labels) {
                let cell = match kind {
                    CsvLabels::Exact => row[0].as_str(),
                    CsvLabels::SpreadsheetSafe => row[0].strip_prefix('\'').unwrap_or(&row[0]),
                };
                assert_eq!((cell, row[1].as_str()), (label, "-0.5"));
                assert!(kind == CsvLabels::Exact || !row[0].trim_start().starts_with(['=', '+', '-', '@', '＝']));
            }
        }
    }
}
