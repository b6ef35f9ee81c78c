//! Converts a GGUF file's metadata to the `config.json` that Hugging Face would write for the same model.
//!
//! Settings that a GGUF file omits, such as activation functions, rotary bases and window patterns, are filled in for
//! each architecture. Sizes are taken from the tensors where the file's fields are known to be wrong.

use hooklens_hooks::DType;
use serde_json::{Map, Value, json};

use super::fields::{Fields, malformed};
use crate::weight_files::WeightFiles;
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::{ConfigError, Error, Result};

/// llama.cpp's names for the supported architectures, as listed in error messages.
const KNOWN: &[&str] = &[
    "bloom",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gpt2",
    "gptneox",
    "granite",
    "llama",
    "olmo",
    "olmo2",
    "olmoe",
    "phi2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "smollm3",
    "stablelm",
    "starcoder",
    "starcoder2",
];

/// Builds the configuration.
pub(super) fn of(fields: &Fields<'_>, files: &WeightFiles) -> Result<Value> {
    let unknown = || ConfigError::UnknownArchitecture {
        given: format!("{} (in a GGUF file)", excerpt(fields.architecture())),
        supported: KNOWN.to_vec(),
    };
    if !KNOWN.contains(&fields.architecture()) {
        return Err(unknown().into());
    }
    let maker = Maker { fields, files };
    let mut json = maker.shared()?;
    let own = match fields.architecture() {
        "llama" => maker.llama()?,
        "qwen2" => json!({"architectures": ["Qwen2ForCausalLM"]}),
        "qwen3" => json!({"architectures": ["Qwen3ForCausalLM"]}),
        "qwen3moe" => maker.mixture("Qwen3MoeForCausalLM", true)?,
        "olmoe" => maker.mixture("OlmoeForCausalLM", false)?,
        "gemma" => json!({
            "architectures": ["GemmaForCausalLM"], "hidden_act": "gelu_pytorch_tanh",
        }),
        "gemma2" => maker.gemma2()?,
        "gemma3" => maker.gemma3()?,
        "phi2" => json!({
            "architectures": ["PhiForCausalLM"], "hidden_act": "gelu_new", "partial_rotary_factor": maker.turned()?,
        }),
        "phi3" => json!({
            "architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": maker.turned()?,
            "sliding_window": fields.maybe_size("attention.sliding_window")?.filter(|width| *width > 0),
        }),
        "gpt2" => json!({"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"}),
        "starcoder" => json!({"architectures": ["GPTBigCodeForCausalLM"], "multi_query": true}),
        "gptneox" => json!({
            "architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "rotary_pct": maker.turned()?,
            "use_parallel_residual": fields.flag("use_parallel_residual")?.unwrap_or(true),
            "rotary_emb_base": fields.maybe_number("rope.freq_base")?.unwrap_or(10_000.0),
        }),
        "falcon" => maker.falcon()?,
        "bloom" => json!({"architectures": ["BloomForCausalLM"]}),
        "starcoder2" => json!({
            "architectures": ["Starcoder2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh", "sliding_window": null,
        }),
        "stablelm" => json!({
            "architectures": ["StableLmForCausalLM"], "partial_rotary_factor": maker.turned()?,
            "use_parallel_residual": files.info("blk.0.ffn_norm.weight").is_none(),
        }),
        "olmo" => json!({
            "architectures": ["OlmoForCausalLM"], "clip_qkv": fields.maybe_number("attention.clamp_kqv")?.filter(|x| *x > 0.0),
        }),
        "olmo2" => maker.olmo2()?,
        "granite" => json!({
            "architectures": ["GraniteForCausalLM"],
            "embedding_multiplier": maker.scale("embedding_scale")?, "residual_multiplier": maker.scale("residual_scale")?,
            "logits_scaling": maker.scale("logit_scale")?,
            "attention_multiplier":
                fields.maybe_number("attention.scale")?.filter(|x| *x != 0.0).unwrap_or(1.0 / maker.d_head()?.sqrt()),
        }),
        "smollm3" => json!({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 4}),
        "gpt-oss" => maker.gpt_oss()?,
        _ => return Err(unknown().into()),
    };
    if let Value::Object(own) = own {
        json.extend(own.into_iter().filter(|(_, value)| !value.is_null()));
    }
    Ok(Value::Object(json))
}

struct Maker<'m> {
    fields: &'m Fields<'m>,
    files: &'m WeightFiles,
}

impl Maker<'_> {
    /// Settings that most architectures have, under every name that Hugging Face's configurations use for them.
    fn shared(&self) -> Result<Map<String, Value>> {
        let f = self.fields;
        let (layers, width, heads) = (self.layers()?, f.size("embedding_length")?, f.size("attention.head_count")?);
        let context = f.size("context_length")?;
        let vocabulary = self.axis("token_embd.weight", 0)?;
        let eps = match f.maybe_number("attention.layer_norm_rms_epsilon")? {
            Some(eps) => Some(eps),
            None => f.maybe_number("attention.layer_norm_epsilon")?,
        };
        let own_eps = f.maybe_number("attention.layer_norm_epsilon")?.or(eps).unwrap_or(1e-5);
        let base = f.maybe_number("rope.freq_base")?;
        let mut json = json!({
            "num_hidden_layers": layers, "n_layer": layers, "hidden_size": width, "n_embd": width,
            "num_attention_heads": heads, "n_head": heads, "vocab_size": vocabulary,
            "num_key_value_heads": f.maybe_size("attention.head_count_kv")?.unwrap_or(heads),
            "head_dim": f.maybe_size("attention.key_length")?,
            "max_position_embeddings": context, "n_positions": self.positions()?.unwrap_or(context), "seq_length": context,
            "rms_norm_eps": eps.unwrap_or(1e-6), "layer_norm_eps": own_eps, "layer_norm_epsilon": own_eps,
            "norm_epsilon": own_eps, "rope_theta": base.unwrap_or(10_000.0), "rope_scaling": self.scaling(context)?,
            "tie_word_embeddings": self.files.info("output.weight").is_none(),
        });
        if let (Some(fields), Some(width)) = (json.as_object_mut(), self.neurons()?) {
            for name in ["intermediate_size", "n_inner", "ffn_hidden_size"] {
                fields.insert(name.into(), width.into());
            }
        }
        match json {
            Value::Object(fields) => Ok(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()),
            _ => Ok(Map::new()),
        }
    }

    /// Number of blocks. Fails if the file has fewer tensors than blocks.
    fn layers(&self) -> Result<usize> {
        let (layers, tensors) = (self.fields.size("block_count")?, self.files.tensors().count());
        match layers > tensors {
            true => {
                Err(malformed(format!("`block_count` is {layers}, but the file has only {tensors} tensors")).into())
            }
            false => Ok(layers),
        }
    }

    /// Size of a tensor's axis.
    fn axis(&self, tensor: &str, axis: usize) -> Result<usize> {
        let info = self.files.info(tensor).and_then(|info| info.shape.get(axis).copied());
        info.ok_or_else(|| malformed(format!("the tensor `{tensor}` is missing or has too few dimensions")).into())
    }

    /// Number of rows in the position table, if there is one.
    fn positions(&self) -> Result<Option<usize>> {
        match self.files.info("position_embd.weight") {
            Some(_) => self.axis("position_embd.weight", 0).map(Some),
            None => Ok(None),
        }
    }

    /// Number of neurons in an MLP or an expert.
    fn neurons(&self) -> Result<Option<usize>> {
        for tensor in ["blk.0.ffn_down.weight", "blk.0.ffn_down_exps.weight"] {
            if let Some(info) = self.files.info(tensor) {
                return Ok(info.shape.last().copied());
            }
        }
        Ok(None)
    }

    fn d_head(&self) -> Result<f64> {
        let f = self.fields;
        let heads = f.size("attention.head_count")?;
        let share = f.size("embedding_length")? / heads.max(1);
        Ok(f.maybe_size("attention.key_length")?.unwrap_or(share) as f64)
    }

    /// Fraction of each head that is rotated.
    fn turned(&self) -> Result<f64> {
        let d_head = self.d_head()?;
        Ok(self.fields.maybe_size("rope.dimension_count")?.map_or(1.0, |turned| turned as f64 / d_head))
    }

    /// A scale factor; 1 if missing or zero.
    fn scale(&self, name: &str) -> Result<f64> {
        Ok(self.fields.maybe_number(name)?.filter(|scale| *scale != 0.0).unwrap_or(1.0))
    }

    /// Reads rotary frequency divisors from a tensor.
    fn divisors(&self, tensor: &str) -> Result<Option<Vec<f64>>> {
        if self.files.info(tensor).is_none() {
            return Ok(None);
        }
        let data = self.files.read(tensor, DType::F64)?;
        let values: Vec<f64> = data.iter().collect();
        match values.iter().all(|x| x.is_finite() && *x > 0.0) {
            true => Ok(Some(values)),
            false => Err(malformed(format!(
                "the tensor `{tensor}` contains frequency divisors that are not positive and finite"
            ))
            .into()),
        }
    }

    /// Scaling of the rotary embedding.
    fn scaling(&self, context: usize) -> Result<Value> {
        let f = self.fields;
        let original = f.maybe_size("rope.scaling.original_context_length")?;
        if let Some(own) = self.divisors("rope_freqs.weight")? {
            // Llama 3 scales each frequency separately.
            return Ok(json!({
                "rope_type": "longrope", "short_factor": own, "long_factor": own, "attention_factor": 1.0,
                "original_max_position_embeddings": context,
            }));
        }
        let (short, long) = ("rope_factors_short.weight", "rope_factors_long.weight");
        if let (Some(short), Some(long)) = (self.divisors(short)?, self.divisors(long)?) {
            return Ok(json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long,
                "attention_factor": f.maybe_number("rope.scaling.attn_factor")?.unwrap_or(1.0),
                "original_max_position_embeddings": original.unwrap_or(context),
            }));
        }
        let factor = match f.maybe_number("rope.scaling.factor")? {
            Some(factor) => factor,
            None => f.maybe_number("rope.scale_linear")?.unwrap_or(1.0),
        };
        let factor = if factor == 0.0 { 1.0 } else { factor };
        let kind = f.text("rope.scaling.type")?.unwrap_or("linear");
        match kind {
            "none" => Ok(Value::Null),
            "linear" if factor == 1.0 => Ok(Value::Null),
            "linear" => Ok(json!({"rope_type": "linear", "factor": factor})),
            "yarn" => {
                let number = |name: &str| f.maybe_number(&format!("rope.scaling.{name}"));
                Ok(json!({
                    "rope_type": "yarn", "factor": factor,
                    "original_max_position_embeddings": original.unwrap_or(context),
                    "beta_fast": number("yarn_beta_fast")?.unwrap_or(32.0),
                    "beta_slow": number("yarn_beta_slow")?.unwrap_or(1.0),
                    "attention_factor": number("yarn_attn_factor")?.unwrap_or(match factor <= 1.0 {
                        true => 1.0,
                        false => 0.1 * factor.ln() + 1.0,
                    }),
                    // Hugging Face's GPT-OSS does not round the boundaries of the frequency ramp.
                    "truncate": f.architecture() != "gpt-oss",
                }))
            }
            other => {
                let (field, given, known) = ("rope.scaling.type", other.to_string(), "none, linear, yarn");
                Err(Error::from(ConfigError::UnknownValue { field, given, known }))
            }
        }
    }

    fn llama(&self) -> Result<Value> {
        Ok(match self.fields.maybe_size("expert_count")?.filter(|count| *count > 0) {
            Some(count) => json!({
                "architectures": ["MixtralForCausalLM"], "num_local_experts": count, "sliding_window": null,
                "num_experts_per_tok": self.fields.size("expert_used_count")?,
            }),
            None => json!({"architectures": ["LlamaForCausalLM"]}),
        })
    }

    fn mixture(&self, architecture: &str, renormalize: bool) -> Result<Value> {
        let count = self.fields.size("expert_count")?;
        Ok(json!({
            "architectures": [architecture], "num_experts": count, "norm_topk_prob": renormalize,
            "num_experts_per_tok": self.fields.size("expert_used_count")?, "moe_intermediate_size": self.neurons()?,
        }))
    }

    /// Value of `query_pre_attn_scalar`; attention scores are divided by its square root. It is the head width, except
    /// in the largest model of a family (`largest` layers), where it is `embedding_length / head_count`.
    fn scored(&self, largest: usize) -> Result<f64> {
        let f = self.fields;
        match self.layers()? == largest {
            true => Ok(f.size("embedding_length")? as f64 / f.size("attention.head_count")?.max(1) as f64),
            false => self.d_head(),
        }
    }

    fn gemma2(&self) -> Result<Value> {
        let f = self.fields;
        Ok(json!({
            "architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": self.scored(46)?,
            "attn_logit_softcapping": f.maybe_number("attn_logit_softcapping")?.unwrap_or(50.0),
            "final_logit_softcapping": f.maybe_number("final_logit_softcapping")?.unwrap_or(30.0),
            "sliding_window": f.maybe_size("attention.sliding_window")?.unwrap_or(4096),
        }))
    }

    fn gemma3(&self) -> Result<Value> {
        let f = self.fields;
        let window = f.maybe_size("attention.sliding_window")?.filter(|width| *width > 0);
        let layers = self.layers()?;
        let kinds: Vec<&str> = (0..layers)
            .map(|layer| if window.is_some() && (layer + 1) % 6 != 0 { "sliding_attention" } else { "full_attention" })
            .collect();
        Ok(json!({
            "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": self.scored(62)?, "layer_types": kinds, "sliding_window": window.unwrap_or(4096),
            "final_logit_softcapping": f.maybe_number("final_logit_softcapping")?,
            "rope_theta": f.maybe_number("rope.freq_base")?.unwrap_or(1e6),
            "rope_local_base_freq": f.maybe_number("rope.freq_base_swa")?.unwrap_or(10_000.0),
        }))
    }

    fn falcon(&self) -> Result<Value> {
        let kv = self.fields.maybe_size("attention.head_count_kv")?.unwrap_or(1);
        // In older models, all heads share one key/value head.
        Ok(json!({
            "architectures": ["FalconForCausalLM"], "activation": "gelu", "new_decoder_architecture": kv > 1,
            "num_kv_heads": kv, "multi_query": true, "parallel_attn": true,
        }))
    }

    fn olmo2(&self) -> Result<Value> {
        let f = self.fields;
        let Some(window) = f.maybe_size("attention.sliding_window")?.filter(|width| *width > 0) else {
            return Ok(json!({"architectures": ["Olmo2ForCausalLM"]}));
        };
        let layers = self.layers()?;
        let near = match f.flags("attention.sliding_window_pattern")? {
            Some(near) => near,
            None => (0..layers).map(|layer| (layer + 1) % 4 != 0).collect(),
        };
        let kinds: Vec<&str> =
            near.iter().map(|near| if *near { "sliding_attention" } else { "full_attention" }).collect();
        Ok(json!({"architectures": ["Olmo3ForCausalLM"], "sliding_window": window, "layer_types": kinds}))
    }

    fn gpt_oss(&self) -> Result<Value> {
        let f = self.fields;
        Ok(json!({
            "architectures": ["GptOssForCausalLM"], "num_local_experts": f.size("expert_count")?,
            "num_experts_per_tok": f.size("expert_used_count")?,
            "sliding_window": f.maybe_size("attention.sliding_window")?.unwrap_or(128),
        }))
    }
}
