//! Intervals and p-values over pairs or prompts, in all forms in which results are reported.

use serde_json::{Value, json};

use super::Failure;
use super::out::Column;
use hooklens_analysis::error::StatisticsError;
use hooklens_analysis::labeled::LabeledArray;
use hooklens_analysis::statistics::{EffectStatistics, Statistics};
use hooklens_io::csv_text::{CsvLabels, CsvTable};
use hooklens_model::error::Error;

/// Statistics over `count` examples; `None` for a single example, which does not show how results vary.
pub(super) fn over(
    count: usize,
    statistics: impl FnOnce(&Statistics) -> Result<EffectStatistics, StatisticsError>,
) -> Result<Option<EffectStatistics>, Failure> {
    Ok((count > 1).then(|| statistics(&Statistics::new())).transpose().map_err(Error::from)?)
}

/// Columns of a printed table.
pub(super) fn columns(found: Option<&EffectStatistics>) -> Vec<Column<'_>> {
    let Some(found) = found else { return Vec::new() };
    let p_value = Column { name: "adjusted p", values: &found.adjusted_p_value, is_signed: false };
    vec![Column::signed("95 % low", &found.low), Column::signed("95 % high", &found.high), p_value]
}

/// Adds the bounds of intervals and the p-values to a JSON result, null if there are none.
pub(super) fn with_intervals(mut body: Value, found: Option<&EffectStatistics>) -> Value {
    body["low"] = json!(found.map(|found| &found.low));
    body["high"] = json!(found.map(|found| &found.high));
    body["p_value"] = json!(found.map(|found| &found.p_value));
    body["adjusted_p_value"] = json!(found.map(|found| &found.adjusted_p_value));
    body
}

/// CSV of values with their standard errors, intervals and p-values, which are empty if there are none.
pub(super) fn csv(values: &LabeledArray, found: Option<&EffectStatistics>, labels: CsvLabels) -> String {
    let columns = [
        ("standard_error", found.map(|found| &found.standard_error)),
        ("low", found.map(|found| &found.low)),
        ("high", found.map(|found| &found.high)),
        ("p_value", found.map(|found| &found.p_value)),
        ("adjusted_p_value", found.map(|found| &found.adjusted_p_value)),
    ];
    csv_with(values, &columns, labels)
}

/// CSV with one row per value: its labels, the value, and further columns. Cells without a number are empty.
pub(super) fn csv_with(values: &LabeledArray, columns: &[(&str, Option<&LabeledArray>)], labels: CsvLabels) -> String {
    let names = values.axes().iter().map(|axis| axis.name.as_str()).chain(["value"]);
    let mut table = CsvTable::new(names.chain(columns.iter().map(|(name, _)| *name)), labels);
    for (place, value) in values.values().indexed_iter() {
        let at = values.axes().iter().enumerate().map(|(axis, own)| own.labels[place[axis]].as_str());
        let cells = columns.iter().map(|(_, array)| {
            let cell = array.map(|array| array.values()[&place]).filter(|cell| !cell.is_nan());
            cell.map_or(String::new(), |cell| cell.to_string())
        });
        table.row(at, std::iter::once(value.to_string()).chain(cells));
    }
    table.finish()
}
