//! Trainings as a file, from which they go on as if they had not stopped.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use hooklens_hooks::{Activation, DType, write_safetensors};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::parameter::Parameter;
use super::trainer::{Step, Trainer};
use crate::error::{FeatureError, LoadError, Result};
use crate::regular;
use crate::weight_files::WeightFiles;

/// The key of what is said of all trainings.
const STATE: &str = "trainings";
/// The key of what they are trained on.
const DATA: &str = "data";

/// Writes all trainings and their logs to one file, whole or not at all.
pub(super) fn save(path: &Path, trainers: &mut [Trainer], logs: &[Vec<Step>], data: &str) -> Result<()> {
    let mut tensors: Vec<(String, Activation)> = Vec::new();
    let mut states = Vec::new();
    for (place, (trainer, log)) in trainers.iter_mut().zip(logs).enumerate() {
        for (name, parameter) in trainer.named() {
            for (part, values) in
                [("value", &parameter.value), ("first", &parameter.first), ("second", &parameter.second)]
            {
                if !values.is_empty() {
                    let data = TensorData::new(values.clone(), [values.len()]);
                    let tensor = Tensor::<1>::from_data(data, &Device::flex());
                    tensors.push((format!("{place}.{name}.{part}"), tensor.into()));
                }
            }
        }
        states.push(json!({
            "settings": trainer.settings.described(),
            "scales": trainer.scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>(),
            "silent": trainer.silent,
            "threshold": trainer.threshold.to_bits(),
            "step": trainer.step,
            "tokens": trainer.tokens,
            "log": log.iter().map(|step| step.numbers().map(f64::to_bits)).collect::<Vec<_>>(),
        }));
    }
    let metadata =
        HashMap::from([(STATE.to_string(), Value::from(states).to_string()), (DATA.to_string(), data.to_string())]);
    Ok(write_safetensors(path, tensors.iter().map(|(name, tensor)| (name.clone(), tensor)), metadata)?)
}

/// Puts trainings where a file left them, and gives their logs.
///
/// # Errors
/// A file that is damaged, or of trainings with other settings or of other data.
pub(super) fn restore(path: &Path, trainers: &mut [Trainer], data: &str) -> Result<Vec<Vec<Step>>> {
    let wrong = |reason: String| crate::error::Error::from(FeatureError::Setting { path: path.into(), reason });
    let damaged = || wrong("it is not a checkpoint of this program".into());
    let bytes = regular::read_tensors(path).map_err(LoadError::file(path))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|_| damaged())?;
    let states = metadata.metadata().as_ref().and_then(|metadata| metadata.get(STATE)).ok_or_else(damaged)?;
    let states: Value = serde_json::from_str(states).map_err(|_| damaged())?;
    let states = states.as_array().ok_or_else(damaged)?;
    if states.len() != trainers.len() {
        return Err(wrong(format!("it is of {} dictionaries, and {} are trained", states.len(), trainers.len())));
    }
    let kept =
        metadata.metadata().as_ref().and_then(|metadata| metadata.get(DATA)).map_or("nothing it tells", |data| data);
    if kept != data {
        return Err(wrong(format!("it is of a training on {kept}, and this is one on {data}")));
    }
    let files = WeightFiles::open(&[path.to_path_buf()])?;
    let mut logs = Vec::new();
    for (place, (trainer, state)) in trainers.iter_mut().zip(states).enumerate() {
        let (said, own) = (state["settings"].as_str().ok_or_else(damaged)?, trainer.settings.described());
        if said != own {
            return Err(wrong(format!("it is of a training with other settings: {said}, and these are {own}")));
        }
        let whole = |key: &str| state[key].as_u64().ok_or_else(damaged);
        let numbers = |key: &str| -> Result<Vec<u64>> {
            let all = state[key].as_array().ok_or_else(damaged)?;
            all.iter().map(|number| number.as_u64().ok_or_else(damaged)).collect()
        };
        trainer.scales = numbers("scales")?.into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
        trainer.silent = numbers("silent")?;
        trainer.threshold = f64::from_bits(whole("threshold")?);
        (trainer.step, trainer.tokens) = (whole("step")? as usize, whole("tokens")? as usize);
        for (name, parameter) in trainer.named() {
            let Parameter { value, first, second, .. } = parameter;
            for (part, values) in [("value", value), ("first", first), ("second", second)] {
                if values.is_empty() {
                    continue;
                }
                let read: Vec<f32> = files.read(&format!("{place}.{name}.{part}"), DType::F32)?.iter().collect();
                if read.len() != values.len() {
                    return Err(damaged());
                }
                *values = read;
            }
        }
        let log = state["log"].as_array().ok_or_else(damaged)?;
        let step = |step: &Value| {
            let numbers = step.as_array()?.iter().map(|bits| bits.as_u64().map(f64::from_bits));
            Step::from_numbers(&numbers.collect::<Option<Vec<_>>>()?)
        };
        logs.push(log.iter().map(step).collect::<Option<Vec<_>>>().ok_or_else(damaged)?);
    }
    Ok(logs)
}
