//! Checkpoint files, from which training resumes as if it had not been interrupted.
//!
//! The last 16 bytes are a 128-bit XXH3 hash of the whole file, computed with zeros in their place. It keeps training
//! from resuming from a damaged file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use hooklens_hooks::{Unfinished, write_views_to};
use safetensors::{Dtype, SafeTensors, View};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::identity::{TrainingIdentity, data_text};
use super::parameter::Parameter;
use super::trainer::{Step, Trainer};
use crate::error::FeatureError;
use hooklens_io::regular;
use hooklens_model::error::{Result, load_errors};

/// Metadata key of the state of all dictionaries in training.
const STATE: &str = "trainings";
/// Metadata key of the description of the data.
const DATA: &str = "data";
/// Metadata key of the hash of the prompts read so far.
const SEEN: &str = "prompts_read";
/// Name of the tensor of the tokens since each latent was last active.
const SILENT: &str = "silent";
/// Name of the tensor of the bits of the logged steps' numbers.
const LOG: &str = "log";
/// Name of the last tensor: tensors with one-byte elements come after all others.
const CHECKSUM: &str = "checksum";
const CHECKSUM_LEN: usize = size_of::<u128>();

/// A tensor of the file.
enum Stored<'t> {
    Values(&'t [f32], [usize; 1]),
    /// Whole numbers, or the bits of floats.
    Whole(Vec<u64>, [usize; 1]),
    /// Zeros, until the rest of the file is written.
    Checksum,
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Stored::Values(..) => Dtype::F32,
            Stored::Whole(..) => Dtype::U64,
            Stored::Checksum => Dtype::U8,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Stored::Values(_, shape) | Stored::Whole(_, shape) => shape,
            Stored::Checksum => &[CHECKSUM_LEN],
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Stored::Values(values, _) => Cow::Owned(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Stored::Whole(numbers, _) => Cow::Owned(numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Stored::Checksum => Cow::Borrowed(&[0; CHECKSUM_LEN]),
        }
    }

    fn data_len(&self) -> usize {
        match self {
            Stored::Values(values, _) => size_of_val(*values),
            Stored::Whole(numbers, _) => size_of_val(&numbers[..]),
            Stored::Checksum => CHECKSUM_LEN,
        }
    }
}

/// Saves the state and logs of all dictionaries in training to one file, atomically. `seen` is the hash of the prompts
/// read so far.
pub(super) fn save(
    path: &Path,
    trainers: &mut [Trainer],
    logs: &[Vec<Step>],
    data: &Value,
    seen: Option<String>,
) -> Result<()> {
    let state = |trainer: &Trainer| {
        json!({
            "settings": trainer.settings.described(),
            "scales": trainer.scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>(),
            "step": trainer.step,
            "tokens": trainer.tokens,
        })
    };
    let states: Vec<Value> = trainers.iter().map(state).collect();
    let metadata = [(STATE, Value::from(states).to_string()), (DATA, data_text(data))].into_iter();
    let metadata = metadata.chain(seen.map(|seen| (SEEN, seen))).map(|(key, value)| (key.to_string(), value));
    let metadata: HashMap<String, String> = metadata.collect();
    let mut tensors = vec![(CHECKSUM.to_string(), Stored::Checksum)];
    for (place, (trainer, log)) in trainers.iter_mut().zip(logs).enumerate() {
        // The header is limited to 100 MB, which a long log would exceed.
        let log: Vec<u64> = log.iter().flat_map(|step| step.numbers().map(f64::to_bits)).collect();
        for (name, numbers) in [(SILENT, trainer.silent.clone()), (LOG, log)] {
            let shape = [numbers.len()];
            tensors.push((format!("{place}.{name}"), Stored::Whole(numbers, shape)));
        }
        for (name, parameter) in trainer.named() {
            let Parameter { value, first, second, .. } = parameter;
            for (part, values) in [("value", value), ("first", first), ("second", second)] {
                if !values.is_empty() {
                    tensors.push((format!("{place}.{name}.{part}"), Stored::Values(values, [values.len()])));
                }
            }
        }
    }
    let write = || {
        let mut unfinished = Unfinished::beside(path)?;
        let mut buffered = BufWriter::with_capacity(1 << 20, &mut unfinished);
        let hash = write_views_to(&mut buffered, tensors, metadata)?;
        buffered.seek(SeekFrom::End(-(CHECKSUM_LEN as i64)))?;
        buffered.write_all(&hash.to_le_bytes())?;
        buffered.flush()?;
        drop(buffered);
        unfinished.finish().map(drop)
    };
    Ok(write().map_err(load_errors::cant_write(path))?)
}

/// Whether the end of a file is the hash of the rest.
fn is_whole(bytes: &[u8]) -> bool {
    let Some((rest, checksum)) = bytes.split_last_chunk::<CHECKSUM_LEN>() else { return false };
    let mut hash = Xxh3::new();
    hash.update(rest);
    hash.update(&[0; CHECKSUM_LEN]);
    hash.digest128() == u128::from_le_bytes(*checksum)
}

/// Restores the state of the dictionaries in training from a file. Returns their logs, and the hash of the prompts read
/// so far.
///
/// # Errors
/// Fails if the file is damaged, or belongs to a run with different settings or data.
pub(super) fn restore(path: &Path, trainers: &mut [Trainer], data: &Value) -> Result<(Vec<Vec<Step>>, Option<String>)> {
    let wrong =
        |reason: String| hooklens_model::error::Error::from(FeatureError::Setting { path: path.into(), reason });
    let bytes = regular::read_tensors(path).map_err(load_errors::cant_read(path))?;
    let unknown = || wrong("it is not a checkpoint of hooklens, or it is damaged".into());
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|_| unknown())?;
    let metadata = header.metadata().as_ref();
    let states = metadata.and_then(|metadata| metadata.get(STATE)).ok_or_else(unknown)?;
    if header.info(CHECKSUM).is_none() {
        let message = "an earlier version of hooklens wrote it, without a checksum; finish training with that version, \
                    or remove the file to start over";
        return Err(wrong(message.into()));
    }
    if !is_whole(&bytes) {
        let message = "it is damaged: its checksum does not match its content; remove it to restart training";
        return Err(wrong(message.into()));
    }
    let states: Value = serde_json::from_str(states).map_err(|_| unknown())?;
    let states = states.as_array().ok_or_else(unknown)?;
    if states.len() != trainers.len() {
        return Err(wrong(format!(
            "it contains {} dictionaries, but this run trains {}",
            states.len(),
            trainers.len()
        )));
    }
    let kept = metadata.and_then(|metadata| metadata.get(DATA)).ok_or_else(unknown)?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|_| unknown())?;
    let mut logs = Vec::new();
    for (place, (trainer, state)) in trainers.iter_mut().zip(states).enumerate() {
        let file = TrainingIdentity { settings: state["settings"].clone(), data: kept.as_str().into() };
        if let Some(difference) = file.difference(&TrainingIdentity::new(&trainer.settings, data)) {
            return Err(wrong(difference.to_string()));
        }
        let whole = |key: &str| state[key].as_u64().ok_or_else(unknown);
        let numbers = |key: &str| -> Result<Vec<u64>> {
            let all = state[key].as_array().ok_or_else(unknown)?;
            all.iter().map(|number| number.as_u64().ok_or_else(unknown)).collect()
        };
        trainer.scales = numbers("scales")?.into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
        let stored = |name: &str| -> Result<Vec<u64>> {
            let tensor = tensors.tensor(&format!("{place}.{name}")).map_err(|_| unknown())?;
            match tensor.data().as_chunks::<8>() {
                (numbers, []) if tensor.dtype() == Dtype::U64 => {
                    Ok(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
                }
                _ => Err(unknown()),
            }
        };
        let silent = stored(SILENT)?;
        if silent.len() != trainer.silent.len() {
            return Err(unknown());
        }
        trainer.silent = silent;
        (trainer.step, trainer.tokens) = (whole("step")? as usize, whole("tokens")? as usize);
        for (name, parameter) in trainer.named() {
            let Parameter { value, first, second, .. } = parameter;
            for (part, values) in [("value", value), ("first", first), ("second", second)] {
                if values.is_empty() {
                    continue;
                }
                let tensor = tensors.tensor(&format!("{place}.{name}.{part}")).map_err(|_| unknown())?;
                let (numbers, rest) = tensor.data().as_chunks::<4>();
                if tensor.dtype() != Dtype::F32 || !rest.is_empty() || numbers.len() != values.len() {
                    return Err(unknown());
                }
                values.iter_mut().zip(numbers).for_each(|(to, from)| *to = f32::from_le_bytes(*from));
            }
        }
        let log: Vec<f64> = stored(LOG)?.into_iter().map(f64::from_bits).collect();
        let steps = log.chunks(Step::NUMBERS).map(Step::from_numbers).collect::<Option<Vec<_>>>();
        logs.push(steps.ok_or_else(unknown)?);
    }
    Ok((logs, metadata.and_then(|metadata| metadata.get(SEEN)).cloned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Objective, Training};

    fn trainers() -> Vec<Trainer> {
        let settings = |seed| Training::autoencoder("hook_x", 6).objective(Objective::jump_relu(2.0)).seed(seed);
        [1, 2].map(|seed| Trainer::new(&settings(seed), 5, 5)).to_vec()
    }

    /// Every flipped bit, anywhere in the file, is detected.
    #[test]
    fn damaged_checkpoints_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let mut saved = trainers();
        (saved[1].step, saved[1].tokens, saved[1].scales[0]) = (3, 6000, 1.25);
        saved[1].coders[0].encoder.value[7] = 0.5;
        let step = Step::from_numbers(&[3.0, 6000.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).unwrap();
        let logs = vec![vec![], vec![step]];
        let data = Value::from("data");
        save(&path, &mut saved, &logs, &data, Some("read".into())).unwrap();
        let mut read = trainers();
        assert_eq!(restore(&path, &mut read, &data).unwrap(), (logs, Some("read".into())));
        assert_eq!((read[1].step, read[1].tokens, read[1].scales[0]), (3, 6000, 1.25));
        for (saved, read) in saved.iter_mut().zip(&mut read) {
            let values = |trainer: &mut Trainer| -> Vec<Vec<f32>> {
                trainer.named().into_iter().map(|(_, parameter)| parameter.value.clone()).collect()
            };
            assert_eq!(values(saved), values(read));
        }
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            hooklens_model::error::error_chain(&restore(&path, &mut trainers(), &data).unwrap_err())
        };
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            refused(&bytes);
        }
        let mut bytes = whole.clone();
        let data = whole.len() - 100;
        bytes[data] ^= 1;
        assert!(refused(&bytes).contains("it is damaged"));
        assert!(refused(&whole[..whole.len() - 1]).contains("damaged"));
        assert!(refused(b"").contains("not a checkpoint"));
    }

    /// Earlier versions wrote checkpoints without a checksum.
    #[test]
    fn checkpoints_of_earlier_versions_are_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let settings = json!([{ "settings": "Training { sites: Autoencoder(\"x\") }" }]).to_string();
        let metadata = HashMap::from([(STATE.to_string(), settings), (DATA.to_string(), "data".to_string())]);
        let tensors = vec![("0.center.value".to_string(), Stored::Values(&[1.0], [1]))];
        hooklens_hooks::write_views(&path, tensors, metadata).unwrap();
        let message = restore(&path, &mut trainers(), &"data".into()).unwrap_err().to_string();
        assert!(message.contains("an earlier version of hooklens wrote it"), "{message}");
    }
}
