//! What to serve.

use std::net::SocketAddr;

use crate::limits::ENGINES_MAX;
use crate::model::{Profile, ProfileError};

/// A server's configuration; [`crate::server::serve`] checks it.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where the engines listen: one engine an address. Port 0 takes any free port.
    pub listen: Vec<SocketAddr>,
    /// What each engine can do.
    pub profile: Profile,
    /// How many times faster than the profile everything runs. The timer behind it has a
    /// granularity of 1 ms: above about 10, arrival and token times are smeared by more than
    /// a decode step. Times inside the model stay exact.
    pub speed: f64,
    /// Decides what the engines generate; the same for all, as equal weights are.
    pub seed: u64,
    /// The model names that are answered to; the first one is reported.
    pub served_model_names: Vec<String>,
}

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The profile cannot be run.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No engine, or too many.
    #[error("{engines} engines; 1 to {ENGINES_MAX} can be served")]
    Engines {
        /// The number asked for.
        engines: usize,
    },
    /// The speed is zero, negative or not finite.
    #[error("speed {speed} is not positive and finite")]
    Speed {
        /// The speed asked for.
        speed: f64,
    },
    /// No model name, or an empty one.
    #[error("at least one served model name is needed, and none may be empty")]
    ModelName,
}

impl ServerConfig {
    /// Whether the configuration can be served.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.profile.check()?;
        let engines = self.listen.len();
        if !(1..=ENGINES_MAX).contains(&engines) {
            return Err(ConfigError::Engines { engines });
        }
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return Err(ConfigError::Speed { speed: self.speed });
        }
        if self.served_model_names.is_empty()
            || self.served_model_names.iter().any(String::is_empty)
        {
            return Err(ConfigError::ModelName);
        }
        Ok(())
    }

    /// The name that answers carry.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.served_model_names.first().map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_configurations_are_named() {
        let good = ServerConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            profile: Profile::named("a100-8b").unwrap(),
            speed: 1.0,
            seed: 0,
            served_model_names: vec!["m".into()],
        };
        good.check().unwrap();
        let bad = ServerConfig { listen: Vec::new(), ..good.clone() };
        assert_eq!(bad.check(), Err(ConfigError::Engines { engines: 0 }));
        let bad = ServerConfig { speed: 0.0, ..good.clone() };
        assert_eq!(bad.check(), Err(ConfigError::Speed { speed: 0.0 }));
        let bad = ServerConfig { served_model_names: vec![String::new()], ..good.clone() };
        assert_eq!(bad.check(), Err(ConfigError::ModelName));
        let profile = Profile { max_num_seqs: 0, ..good.profile.clone() };
        let bad = ServerConfig { profile, ..good };
        assert!(matches!(bad.check(), Err(ConfigError::Profile(_))));
    }
}
