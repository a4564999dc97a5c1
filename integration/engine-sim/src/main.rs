//! Serves simulated engines: `warmpath-engine-sim --engines 8 --port-base 9000 --profile a100-13b`.
#![deny(missing_docs)]

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use warmpath_engine_sim::model::{Profile, ProfileError};
use warmpath_engine_sim::server::{self, BytesTokenizer, PromptTokenizer, ServerConfig};

/// OpenAI-compatible LLM engines without a GPU: vLLM's scheduling, prefix cache, metrics and API,
/// with tokens that take as long as the profile says.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// How many engines to serve, on consecutive ports.
    #[arg(long, default_value_t = 1, conflicts_with = "ports")]
    engines: u16,
    /// The first engine's port.
    #[arg(long, default_value_t = 9000, conflicts_with = "ports")]
    port_base: u16,
    /// The engines' ports, one engine a port; 0 takes any free one.
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    listen: IpAddr,
    /// The model names to answer to; the first is reported.
    #[arg(long, value_delimiter = ',', default_value = "sim")]
    served_model_name: Vec<String>,
    /// How many times faster than the profile everything runs.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Decides what the engines generate.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How prompts become tokens.
    #[arg(long, value_enum, default_value_t = Tokens::Bytes)]
    tokens: Tokens,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// How prompts become tokens.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Tokens {
    /// A token is a byte of the messages in a row.
    Bytes,
}

/// A named profile and what to change in it.
#[derive(Debug, clap::Args)]
struct ProfileArgs {
    /// The GPU and model to imitate: a100-1b, a100-8b, a100-13b or a100-70b.
    #[arg(long, default_value = "a100-8b")]
    profile: String,
    /// KV memory in tokens.
    #[arg(long)]
    kv_tokens: Option<u32>,
    /// Prompt tokens computed in a second.
    #[arg(long)]
    prefill_tokens_per_s: Option<f64>,
    /// The fixed part of a step, in milliseconds.
    #[arg(long)]
    decode_step_ms: Option<f64>,
    /// What each sequence adds to a step, in milliseconds.
    #[arg(long)]
    decode_per_seq_ms: Option<f64>,
    /// The most sequences that run at once.
    #[arg(long)]
    max_num_seqs: Option<u32>,
    /// The most tokens scheduled in one step.
    #[arg(long)]
    max_num_batched_tokens: Option<u32>,
    /// Tokens in a KV block.
    #[arg(long)]
    block_size: Option<u32>,
    /// The longest context, in tokens.
    #[arg(long)]
    max_model_len: Option<u32>,
}

impl ProfileArgs {
    fn build(&self) -> Result<Profile, ProfileError> {
        let named = Profile::named(&self.profile)?;
        Ok(Profile {
            kv_tokens: self.kv_tokens.unwrap_or(named.kv_tokens),
            prefill_tokens_per_s: self.prefill_tokens_per_s.unwrap_or(named.prefill_tokens_per_s),
            decode_step_ms: self.decode_step_ms.unwrap_or(named.decode_step_ms),
            decode_per_seq_ms: self.decode_per_seq_ms.unwrap_or(named.decode_per_seq_ms),
            max_num_seqs: self.max_num_seqs.unwrap_or(named.max_num_seqs),
            max_num_batched_tokens: self
                .max_num_batched_tokens
                .unwrap_or(named.max_num_batched_tokens),
            block_size_tokens: self.block_size.unwrap_or(named.block_size_tokens),
            max_model_len_tokens: self.max_model_len.or(named.max_model_len_tokens),
            name: named.name,
        })
    }
}

impl Args {
    fn addresses(&self) -> Result<Vec<SocketAddr>, StartError> {
        let at = |port| SocketAddr::new(self.listen, port);
        if !self.ports.is_empty() {
            return Ok(self.ports.iter().copied().map(at).collect());
        }
        (0..self.engines)
            .map(|engine| self.port_base.checked_add(engine).map(at))
            .collect::<Option<_>>()
            .ok_or(StartError::Ports)
    }

    fn tokenizer(&self) -> Arc<dyn PromptTokenizer> {
        match self.tokens {
            Tokens::Bytes => Arc::new(BytesTokenizer),
        }
    }
}

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Serve(#[from] server::ServeError),
    #[error("the last engine's port would be above 65535")]
    Ports,
    #[error("no runtime: {0}")]
    Io(#[from] std::io::Error),
}

async fn run(args: &Args) -> Result<(), StartError> {
    let config = ServerConfig {
        listen: args.addresses()?,
        profile: args.profile.build()?,
        speed: args.speed,
        seed: args.seed,
        served_model_names: args.served_model_name.clone(),
    };
    let running = server::serve(config, args.tokenizer()).await?;
    // One line an engine, for whoever started this with port 0.
    for address in running.addresses() {
        println!("listening on {address}");
    }
    tokio::signal::ctrl_c().await?;
    Ok(())
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args = Args::parse();
    let result = tokio::runtime::Runtime::new()
        .map_err(StartError::from)
        .and_then(|runtime| runtime.block_on(run(&args)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("warmpath-engine-sim: {error}");
            ExitCode::FAILURE
        }
    }
}
