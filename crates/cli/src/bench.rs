//! `hooklens bench`.

use std::io::Write;

use clap::Args;
use hooklens_hooks::DType;
use serde_json::json;

use super::CliResult;
use super::any_model::AnyModel;
use super::args::{DtypeArg, ModelArg};
use super::json_result::{ModelId, print_result};
use super::terminal::{is_unread, stdout};
use crate::benchmark::{BenchModel, Machine, Work, measure};
use hooklens_loading::loading::ComputeType;
use hooklens_model::device::in_main_memory;

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) model: ModelArg,
    /// What to measure: forward, cache, gradients, decode, prefix, patch, branches (default: all that the model
    /// supports, except branches; gradients, decode, prefix and branches need a decoder)
    #[arg(long, value_name = "WORK,...", value_delimiter = ',')]
    pub(super) work: Vec<Work>,
    /// How many times to run each workload; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    #[command(flatten)]
    pub(super) dtype: DtypeArg,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &BenchArgs) -> CliResult {
    let options = args.model.options(args.dtype.dtype)?;
    match AnyModel::load(&args.model, options)? {
        AnyModel::Decoder(model) => bench(args, &model),
        AnyModel::Encoder(model) => bench(args, &model),
        AnyModel::EncoderDecoder(model) => bench(args, &model),
    }
}

fn bench<M: BenchModel>(args: &BenchArgs, model: &M) -> CliResult {
    let mut out = stdout();
    // The machine's bandwidth and FLOP/s are measured on the CPU, so timings on other devices can't be compared with
    // them.
    let machine = model.devices().iter().all(in_main_memory).then(Machine::measured);
    if !args.json {
        if let Some(Machine { bytes_per_second, flops, .. }) = machine {
            let threads = rayon::current_num_threads();
            let (read, computed) = (bytes_per_second / 1e9, flops / 1e9);
            writeln!(
                out,
                "this machine, {threads} threads: reads {read:.1} GB/s, computes {computed:.0} GFLOP/s in f32"
            )?;
        }
        writeln!(out, "{:38} {:>10} {:>10} {:>12} {:>10}", "", "median ms", "min ms", "tokens/s", "peak")?;
    }
    let mut all = Vec::new();
    let work = if args.work.is_empty() { M::WORK } else { &args.work };
    for work in work {
        for timing in measure(model, *work, args.rounds as usize)? {
            if !args.json {
                write!(out, "{timing}")?;
                if let (Some(machine), Some(amount)) = (machine, timing.amount) {
                    let (least, bound) = machine.least_ms(amount);
                    write!(out, "  {:3.0} % of {bound}", 100.0 * least / timing.median_ms)?;
                }
                writeln!(out)?;
            }
            if is_unread() {
                return Ok(());
            }
            all.push(timing);
        }
    }
    if args.json {
        let body = json!({"device": args.model.device, "dtype": args.dtype.dtype.unwrap_or(ComputeType::Float(DType::F32)).to_string(), "machine": machine,
            "rounds": args.rounds, "threads": rayon::current_num_threads(), "timings": all});
        print_result(Some(&ModelId::named(&args.model.model)), body)?;
    }
    Ok(())
}
