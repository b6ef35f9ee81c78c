//! The header of a safetensors file.

use std::collections::BTreeMap;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

/// Maximum header length that readers accept, in bytes.
const LONGEST: usize = 100_000_000;

/// Everything before the data in a safetensors file, and each tensor's location in the data.
#[derive(Debug)]
pub struct SafetensorsHeader {
    bytes: Vec<u8>,
    places: BTreeMap<String, (u64, u64)>,
    order: Vec<usize>,
    data_len: u64,
}

impl SafetensorsHeader {
    /// Builds the header of a file with these tensors and `metadata`. The data starts at a multiple of eight bytes.
    /// Tensors are ordered by decreasing element width and otherwise as given, so that each is aligned to its element
    /// size and readers can memory-map it.
    ///
    /// ```
    /// use hooklens_hooks::SafetensorsHeader;
    /// use safetensors::Dtype;
    /// let tensors = [("mask".to_string(), Dtype::U8, vec![3]), ("weight".to_string(), Dtype::F32, vec![2])];
    /// let header = SafetensorsHeader::new(tensors, [])?;
    /// assert_eq!(header.place("mask"), Some((8, 11))); // after the floats
    /// assert_eq!((header.bytes().len() % 8, header.data_len()), (0, 11));
    /// # Ok::<(), safetensors::SafeTensorError>(())
    /// ```
    ///
    /// # Errors
    /// If a name occurs twice, a size overflows, or the header is longer than readers accept (100 MB).
    pub fn new(
        tensors: impl IntoIterator<Item = (String, Dtype, Vec<usize>)>,
        metadata: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SafeTensorError> {
        let mut tensors: Vec<_> = tensors.into_iter().enumerate().collect();
        tensors.sort_by_key(|(_, (_, dtype, _))| std::cmp::Reverse(*dtype));
        let (mut infos, mut places, mut order) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut end = 0usize;
        for (number, (name, dtype, shape)) in tensors {
            let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
            let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bitsize())).map(|bits| bits / 8);
            let start = end;
            end = bytes.and_then(|bytes| start.checked_add(bytes)).ok_or(SafeTensorError::ValidationOverflow)?;
            if places.insert(name.clone(), (start as u64, end as u64)).is_some() {
                return Err(SafeTensorError::InvalidOffset(name));
            }
            order.push(number);
            infos.push((name, TensorInfo { dtype, shape, data_offsets: (start, end) }));
        }
        // Sort the metadata: a hash map would have a different order in every process.
        let metadata: BTreeMap<String, String> = metadata.into_iter().collect();
        let header = Metadata::new(None, infos)?;
        let mut text = serde_json::to_string(&header)?;
        if !metadata.is_empty() {
            let comma = if text == "{}" { "" } else { "," };
            let first = format!("{{\"__metadata__\":{}{comma}", serde_json::to_string(&metadata)?);
            text.replace_range(..1, &first);
        }
        let len = text.len().next_multiple_of(8);
        if len > LONGEST {
            return Err(SafeTensorError::HeaderTooLarge);
        }
        let mut bytes = (len as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(8 + len, b' ');
        Ok(Self { bytes, places, order, data_len: end as u64 })
    }

    /// The bytes at the start of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Byte range of a tensor, relative to the start of the data.
    pub fn place(&self, name: &str) -> Option<(u64, u64)> {
        self.places.get(name).copied()
    }

    /// Storage order of the tensors, as indices into the order in which they were given.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Total size of all tensors in bytes.
    pub fn data_len(&self) -> u64 {
        self.data_len
    }
}
