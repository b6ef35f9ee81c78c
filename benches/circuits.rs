//! Time and memory of edge attribution and of a faithfulness curve, compared with EAP-IG, MIB and TransformerLens 4.3
//! (`benches/circuits.py make FOLDER` writes the model and the pairs, and `attribute` the scores that the curve uses).
//! As in that script, the model is loaded and run once before the clock starts.
//!
//! ```sh
//! cargo bench --bench circuits -- FOLDER attribute|curve PAIRS [STEPS]   # prints one line of JSON
//! ```

use std::path::Path;
use std::time::Instant;

use hooklens::attribution::{EdgeGraph, EdgeScores, Gradient};
use hooklens::circuits::{MIB_SHARES, Selection};
use hooklens::patching::{Ablation, Metric, Patching};
use hooklens::prelude::*;
use serde_json::{Value, json};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [folder, what, pairs, more @ ..] = &arguments[..] else {
        println!("usage: circuits FOLDER attribute|curve PAIRS [STEPS]");
        return Ok(());
    };
    let (folder, count) = (Path::new(folder), pairs.parse::<usize>()?);
    let steps: usize = more.first().map_or(Ok(5), |steps| steps.parse())?;
    let model = HookedTransformer::from_pretrained(&*folder.to_string_lossy())?;
    let text = std::fs::read_to_string(folder.join("pairs.jsonl"))?;
    let pairs: Vec<Value> = text.lines().take(count).map(serde_json::from_str).collect::<Result<_, _>>()?;
    let rows = |name: &str| -> Outcome<Vec<Vec<u32>>> {
        Ok(pairs.iter().map(|pair| serde_json::from_value(pair[name].clone())).collect::<Result<_, _>>()?)
    };
    let ids = |name: &str| -> Outcome<Vec<u32>> {
        Ok(pairs.iter().map(|pair| serde_json::from_value(pair[name].clone())).collect::<Result<_, _>>()?)
    };
    let metric = Metric::logit_diff(&model, ids("answer")?, ids("wrong")?)?;
    let ablation = Ablation::Resample(rows("corrupted")?.into());
    let patching = Patching::ablating(&model, rows("clean")?, ablation, metric)?;
    model.forward(rows("clean")?.swap_remove(0))?;
    let (loaded, start) = (status("VmRSS:")?, Instant::now());
    std::fs::write("/proc/self/clear_refs", "5")?;
    let result = match what.as_str() {
        "attribute" => json!({"largest": patching.edges(Gradient::Integrated(steps))?.largest(1)[0].2}),
        "curve" => {
            let scores = std::fs::read_to_string(folder.join("circuit.json"))?;
            let scores = EdgeScores::from_mib(&EdgeGraph::of(&model)?, &scores)?;
            let curve = patching.faithfulness(&scores, Selection::Top, &MIB_SHARES)?;
            json!({"faithfulness": curve.runs.faithfulness()?, "cpr": curve.cpr()?, "cmd": curve.cmd()?})
        }
        other => return Err(format!("unknown: {other}; expected attribute or curve").into()),
    };
    let seconds = start.elapsed().as_secs_f64();
    let peak = status("VmHWM:")?;
    println!(
        "{}",
        json!({"command": what, "pairs": count, "seconds": seconds, "peak_mb": peak, "loaded_mb": loaded,
            "extra_mb": peak - loaded, "result": result})
    );
    Ok(())
}

/// A size from `/proc/self/status`, in MB.
fn status(name: &str) -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line in /proc/self/status")?;
    Ok(line.split_whitespace().next().unwrap_or("0").parse::<f64>()? / 1e3)
}
