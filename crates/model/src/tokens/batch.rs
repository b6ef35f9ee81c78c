//! Batches of token ids with a padding mask.

use std::str::FromStr;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::error::{BoxError, InputError};

/// Side on which shorter rows are padded.
///
/// ```
/// use hooklens::{PaddingSide, Tokens};
/// let rows = [vec![5, 6, 7], vec![8]];
/// assert_eq!(Tokens::padded(&rows, 0, PaddingSide::Left)?.row(1), [0, 0, 8]);
/// assert_eq!(Tokens::padded(&rows, 0, PaddingSide::Right)?.row(1), [8, 0, 0]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PaddingSide {
    /// Padding before the tokens.
    Left,
    /// Padding after the tokens.
    #[default]
    Right,
}

impl FromStr for PaddingSide {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "left" => Ok(Self::Left),
            "right" => Ok(Self::Right),
            other => Err(format!("`{other}` is not a padding side; use left or right")),
        }
    }
}

/// Token ids `[batch, pos]`, with a mask of the real (non-padding) tokens.
///
/// The ids are kept on the host, where they can be checked without a transfer.
///
/// ```
/// use hooklens::{PaddingSide, Tokens};
/// let tokens = Tokens::padded(&[vec![5, 6, 7], vec![8]], 0, PaddingSide::Left)?;
/// assert_eq!(tokens.shape(), [2, 3]);
/// assert_eq!(tokens.row(1), [0, 0, 8]);
/// assert_eq!(tokens.mask().unwrap()[3..], [false, false, true]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    ids: Vec<u32>,
    batch: usize,
    len: usize,
    mask: Option<Vec<bool>>,
}

impl Tokens {
    /// Creates a batch from rows of equal length, without padding.
    ///
    /// ```
    /// use hooklens::Tokens;
    /// let tokens = Tokens::new(vec![vec![5, 6], vec![7, 8]])?;
    /// assert_eq!((tokens.shape(), tokens.ids()), ([2, 2], &[5, 6, 7, 8][..]));
    /// let message = Tokens::new(vec![vec![5, 6], vec![7]]).unwrap_err().to_string();
    /// assert_eq!(message, "row 1 has 1 tokens, but the first row has 2; pad the rows with `Tokens::padded`");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Ragged`] if the rows differ in length.
    pub fn new(rows: Vec<Vec<u32>>) -> Result<Self, InputError> {
        let len = rows.first().map_or(0, Vec::len);
        if let Some(row) = rows.iter().position(|row| row.len() != len) {
            return Err(InputError::Ragged { row, expected: len, given: rows[row].len() });
        }
        Ok(Self { batch: rows.len(), len, ids: rows.concat(), mask: None })
    }

    /// Creates a batch from rows of any length, padded with `pad` to the longest.
    ///
    /// # Errors
    /// [`InputError::Empty`] if a row has no tokens.
    pub fn padded(rows: &[Vec<u32>], pad: u32, side: PaddingSide) -> Result<Self, InputError> {
        let len = rows.iter().map(Vec::len).max().unwrap_or(0);
        Self::padded_to(rows, len, pad, side)
    }

    /// Creates a batch from rows padded with `pad` to `len`, which no row may exceed.
    fn padded_to(rows: &[Vec<u32>], len: usize, pad: u32, side: PaddingSide) -> Result<Self, InputError> {
        let mut ids = Vec::with_capacity(rows.len() * len);
        let mut mask = Vec::with_capacity(rows.len() * len);
        for (number, row) in rows.iter().enumerate() {
            if row.is_empty() {
                return Err(InputError::Empty { what: format!("row {number}") });
            }
            let missing = len.checked_sub(row.len()).ok_or(InputError::TooLong { len: row.len(), n_ctx: len })?;
            let (before, after) = if side == PaddingSide::Left { (missing, 0) } else { (0, missing) };
            ids.extend(
                std::iter::repeat_n(pad, before).chain(row.iter().copied()).chain(std::iter::repeat_n(pad, after)),
            );
            mask.extend((0..len).map(|i| i >= before && i < before + row.len()));
        }
        let mask = mask.contains(&false).then_some(mask);
        Ok(Self { ids, batch: rows.len(), len, mask })
    }

    /// Checks that the batch is not empty and that every id is less than `d_vocab`.
    pub(crate) fn check(&self, d_vocab: usize) -> Result<(), InputError> {
        let [batch, len] = self.shape();
        if batch == 0 || len == 0 {
            return Err(InputError::Empty { what: "the batch of tokens".into() });
        }
        match self.ids.iter().position(|id| *id as usize >= d_vocab) {
            Some(at) => {
                let token = i64::from(self.ids[at]);
                Err(InputError::Token { token, row: at / len, position: at % len, d_vocab })
            }
            None => Ok(()),
        }
    }

    /// Sets which tokens are real, row by row. Masked tokens are never attended to and take no position.
    ///
    /// ```
    /// use hooklens::Tokens;
    /// let tokens = Tokens::new(vec![vec![9, 5, 6]])?.with_mask(vec![vec![false, true, true]])?;
    /// assert_eq!(tokens.real(0), [5, 6]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::MaskShape`] if the mask has a different shape.
    pub fn with_mask(mut self, mask: Vec<Vec<bool>>) -> Result<Self, InputError> {
        self.set_mask(&flat_mask(&mask, self.shape())?);
        Ok(self)
    }

    /// Replaces the mask with one that is known to have the right length.
    pub(crate) fn set_mask(&mut self, mask: &[bool]) {
        debug_assert_eq!(mask.len(), self.ids.len());
        self.mask = mask.contains(&false).then(|| mask.to_vec());
    }

    /// Shape of the batch, `[batch, pos]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.batch, self.len]
    }

    /// All ids, row by row.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The ids of one row, padding included.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[u32] {
        &self.ids[row * self.len..(row + 1) * self.len]
    }

    /// Mask of real tokens, row by row; `None` if all tokens are real.
    pub fn mask(&self) -> Option<&[bool]> {
        self.mask.as_deref()
    }

    /// Ids of the real tokens in one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn real(&self, row: usize) -> Vec<u32> {
        let ids = self.row(row).iter().copied();
        match &self.mask {
            None => ids.collect(),
            Some(mask) => ids.zip(&mask[row * self.len..]).filter(|(_, real)| **real).map(|(id, _)| id).collect(),
        }
    }

    /// Copies the ids to a device as a tensor `[batch, pos]`.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use hooklens::Tokens;
    /// let tokens = Tokens::new(vec![vec![1, 2, 3]])?;
    /// assert_eq!(tokens.to_tensor(&Device::flex()).dims(), [1, 3]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn to_tensor(&self, device: &Device) -> Tensor<2, Int> {
        let ids: Vec<i32> = self.ids.iter().map(|id| *id as i32).collect();
        hooklens_hooks::upload(TensorData::new(ids, self.shape()), device)
    }
}

impl TryFrom<Tensor<2, Int>> for Tokens {
    type Error = InputError;

    /// Reads token ids from a tensor on any device.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use hooklens::Tokens;
    /// let ids = Tensor::<2, Int>::from_ints([[1, 2, 3]], &Device::flex());
    /// assert_eq!(Tokens::try_from(ids)?.row(0), [1, 2, 3]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Unreadable`] if the tensor cannot be read, [`InputError::NotAnId`] if a value is not a valid id.
    fn try_from(ids: Tensor<2, Int>) -> Result<Self, InputError> {
        let [batch, len] = ids.dims();
        let unreadable = |source: BoxError| InputError::Unreadable { source };
        let data = hooklens_hooks::read(ids).map_err(|e| unreadable(e.into()))?.convert::<i64>();
        let values = data.try_into_vec::<i64>().map_err(|e| unreadable(e.into()))?;
        let to_id = |id: &i64| u32::try_from(*id).map_err(|_| InputError::NotAnId { id: *id });
        let ids = values.iter().map(to_id).collect::<Result<_, _>>()?;
        Ok(Self { ids, batch, len, mask: None })
    }
}

/// Checks that a batch is not empty and that every id is less than `d_vocab`.
pub fn check_ids(tokens: &Tokens, d_vocab: usize) -> Result<(), InputError> {
    tokens.check(d_vocab)
}

/// Flattens a mask row by row.
///
/// # Errors
/// [`InputError::MaskShape`] if the mask does not have `batch` rows of length `len`.
pub(crate) fn flat_mask(rows: &[Vec<bool>], [batch, len]: [usize; 2]) -> Result<Vec<bool>, InputError> {
    let width = rows.iter().map(Vec::len).find(|width| *width != len).unwrap_or(len);
    if rows.len() != batch || width != len {
        return Err(InputError::MaskShape { expected: [batch, len], given: [rows.len(), width] });
    }
    Ok(rows.concat())
}
