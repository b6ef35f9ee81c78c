//! Checks a dump's prompts and points before the first batch is computed.

use std::ops::Range;

#[cfg(feature = "arrow")]
use hooklens_hooks::DType;
use hooklens_hooks::{Axis, HookError, Positions, ResolvePositions};

use super::placing::PromptRow;
use super::{Dump, DumpModel};
use crate::error::DumpError;
use hooklens_model::driver::Logits;
use hooklens_model::error::{Error, InputError, Result};

impl Dump {
    /// Checks everything that can be checked before the first batch, and returns the kept positions of each row.
    pub(super) fn check<M: DumpModel>(&self, model: &M, rows: &[Vec<u32>], to_file: bool) -> Result<Vec<PromptRow>> {
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of prompts".into() }.into());
        }
        self.check_points(model, rows.len(), to_file)?;
        let written = !self.read.is_empty();
        let checked = |row: &Vec<u32>| self.check_row(model, row);
        let named = |(number, row)| {
            checked(row).map_err(|source| DumpError::Row { number: number + 1, source: Box::new(source) }.into())
        };
        for (number, row) in self.read.iter().enumerate().filter(|_| written) {
            let empty = row.is_empty().then(|| InputError::Empty { what: "it".into() }.into());
            empty
                .map_or_else(|| model.check_prompt(row, 0), Err)
                .map_err(|source| Error::from(DumpError::Row { number: number + 1, source: Box::new(source) }))?;
        }
        rows.iter().enumerate().map(named).collect()
    }

    /// Checks the points and settings of a dump of `rows` prompts.
    pub(super) fn check_points<M: DumpModel>(&self, model: &M, rows: usize, to_file: bool) -> Result<()> {
        let points = self.selection.resolve(model.catalog())?;
        let written = !self.read.is_empty();
        if written && self.read.len() != rows {
            return Err(InputError::Rows { encoder: self.read.len(), decoder: rows }.into());
        }
        if self.logits != Logits::None && !M::LOGITS && !written {
            return Err(DumpError::OfDecoder { point: "logits".into() }.into());
        }
        points.iter().try_for_each(|id| model.check_point(*id, written))?;
        let routed = points.iter().map(|id| model.catalog().info(*id)).find(|p| p.axes.first() == Some(&Axis::Routed));
        if let Some(point) = routed.filter(|_| to_file) {
            return Err(DumpError::NotRectangular { point: point.name.to_string() }.into());
        }
        #[cfg(feature = "arrow")]
        if self.tables {
            let untold = points.iter().map(|id| model.catalog().info(*id));
            if let Some(point) = untold.into_iter().find(|point| !super::table::is_by_token(point.axes)) {
                return Err(DumpError::NotByToken { point: point.name.to_string() }.into());
            }
            if self.logits == Logits::Last {
                return Err(DumpError::NotByToken { point: "logits of the last token".into() }.into());
            }
            if to_file || self.dtype == DType::BF16 {
                return Err(DumpError::NotOfTables { what: if to_file { "a single file" } else { "bf16" } }.into());
            }
        }
        if !self.prefix.is_empty() {
            model.check_prompt(&self.prefix, 0)?;
        }
        Ok(())
    }

    /// Checks a prompt, and determines which of its positions are kept.
    pub(super) fn check_row<M: DumpModel>(&self, model: &M, row: &[u32]) -> Result<PromptRow> {
        if row.is_empty() {
            return Err(InputError::Empty { what: "it".into() }.into());
        }
        match self.read.is_empty() {
            true => model.check_prompt(row, self.prefix.len())?,
            false => model.check_written(row, self.prefix.len())?,
        }
        Ok(PromptRow { len: row.len(), kept: self.kept(row.len())? })
    }

    /// Kept positions of a prompt with `len` tokens.
    fn kept(&self, len: usize) -> Result<Range<usize>, HookError> {
        let Positions::Range(start, end) = self.positions else { return self.positions.resolve(len) };
        let place = |n: isize| if n < 0 { n + len as isize } else { n }.clamp(0, len as isize) as usize;
        let (start, end) = (start.map_or(0, place), end.map_or(len, place));
        if start < end {
            return Ok(start..end);
        }
        Err(HookError::Positions { asked: self.positions.to_string(), row: None, len, cached: 0 })
    }
}
