//! One running Envoy and its admin interface.
//!
//! In: which bootstrap, which engines, which filter settings. Out: the address that clients talk to,
//! Envoy's statistics and its log. Envoy ends when the value is dropped.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bootstrap::{Bootstrap, Peers, Variant, merge};
use crate::http::{HttpAnswer, HttpClient};
use crate::process::ChildProcess;
use crate::{HarnessError, paths};

/// How to run the filter.
#[derive(Debug, Clone)]
pub struct FilterOptions {
    /// The module.
    pub wasm: PathBuf,
    /// The demo model's bundle; `None` leaves the filter without a tokenizer.
    pub bundle: Option<PathBuf>,
    /// The routing policy.
    pub policy: String,
    /// Merged into the filter's configuration last (RFC 7396).
    pub config_patch: Value,
}

impl FilterOptions {
    /// The filter that `make filter` builds, with the demo model's bundle.
    pub fn built(policy: &str) -> Result<Self, HarnessError> {
        Ok(Self {
            wasm: paths::wasm()?,
            bundle: Some(paths::demo_bundle()?),
            policy: policy.to_owned(),
            config_patch: json!({}),
        })
    }
}

/// How to run Envoy.
#[derive(Debug, Clone)]
pub struct EnvoyOptions {
    /// Which bootstrap.
    pub variant: Variant,
    /// The engines' addresses.
    pub engines: Vec<SocketAddr>,
    /// Worker threads.
    pub concurrency: u32,
    /// The filter; `None` runs plain Envoy.
    pub filter: Option<FilterOptions>,
    /// The port for clients; 0 lets the system choose.
    pub public_port: u16,
    /// Envoy's log level.
    pub log_level: String,
    /// Whether listeners and engines are in files that Envoy watches, so that they can change while it
    /// runs ([`EnvoyProcess::change`]).
    pub is_dynamic: bool,
    /// Other Envoys that this one tells what it does, and that tell it.
    pub peers: Option<Peers>,
    /// The last edit before Envoy starts, for what no other option covers.
    pub edit: fn(&mut Bootstrap) -> Result<(), HarnessError>,
}

impl EnvoyOptions {
    /// Two workers in front of `engines`, without the filter.
    pub fn plain(variant: Variant, engines: &[SocketAddr]) -> Self {
        Self {
            variant,
            engines: engines.to_vec(),
            concurrency: 2,
            filter: None,
            public_port: 0,
            log_level: "warning".to_owned(),
            is_dynamic: false,
            peers: None,
            edit: |_| Ok(()),
        }
    }

    /// Two workers in front of `engines`, with the filter.
    pub fn with_filter(variant: Variant, engines: &[SocketAddr], filter: FilterOptions) -> Self {
        Self { filter: Some(filter), ..Self::plain(variant, engines) }
    }

    fn bootstrap(&self, internal_port: u16) -> Result<Bootstrap, HarnessError> {
        let mut bootstrap = Bootstrap::load(self.variant)?;
        // A listener that changes keeps its port only if it names it.
        let is_named = self.public_port != 0 || !self.is_dynamic;
        let public_port = if is_named { self.public_port } else { free_port()? };
        bootstrap.set_listener_port("public", public_port)?;
        bootstrap.set_admin_port(0)?;
        bootstrap.set_internal_port(internal_port)?;
        match &self.filter {
            Some(filter) => {
                bootstrap.set_engines(&self.engines)?;
                bootstrap.set_wasm(&filter.wasm)?;
                bootstrap.set_bundle(filter.bundle.as_deref())?;
                if let Some(peers) = &self.peers {
                    bootstrap.add_peers(peers)?;
                }
                let config = bootstrap.filter_config_mut()?;
                config["policy"] = json!(filter.policy);
                merge(config, &filter.config_patch);
            }
            None => {
                bootstrap.remove_filter()?;
                bootstrap.set_engines(&self.engines)?;
                bootstrap.set_bundle(None)?;
            }
        }
        (self.edit)(&mut bootstrap)?;
        Ok(bootstrap)
    }
}

/// Envoy's counters and gauges by name, as its admin interface prints them.
pub type Stats = BTreeMap<String, u64>;

/// A running Envoy.
#[derive(Debug)]
pub struct EnvoyProcess {
    process: ChildProcess,
    admin: SocketAddr,
    public: SocketAddr,
    internal: SocketAddr,
    client: HttpClient,
    /// Set where it may change.
    dynamic: Option<Bootstrap>,
    // Holds the configuration and the log; removed with the value.
    dir: TempDir,
}

/// How long Envoy may take to start: the module is compiled first, on a machine that may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// The filter takes in what an answer taught some milliseconds after the answer has left.
const SETTLED: Duration = Duration::from_millis(30);
/// Envoy's configuration in its directory.
const CONFIG: &str = "envoy.json";
/// Another program may take the port chosen for the internal listener before Envoy does.
const START_ATTEMPTS: u32 = 3;

impl EnvoyProcess {
    /// Starts Envoy and waits until it takes requests.
    pub async fn start(options: &EnvoyOptions) -> Result<Self, HarnessError> {
        attempted(async || {
            let (dir, internal_port) = (config_dir()?, free_port()?);
            let bootstrap = options.bootstrap(internal_port)?;
            let dynamic = options.is_dynamic.then(|| bootstrap.clone());
            match &dynamic {
                Some(bootstrap) => write_split(bootstrap, dir.path())?,
                None => write(&dir.path().join(CONFIG), &bootstrap.to_json())?,
            }
            let flags = Flags {
                concurrency: options.concurrency,
                log_level: &options.log_level,
                public: "public",
            };
            Self::launch(dir, internal_port, &flags, dynamic).await
        })
        .await
    }

    /// Starts Envoy, with two workers, with a configuration that is none of the bootstraps. `config` makes
    /// it; it is given the port for the internal listener and the one for the admin interface. `public` is
    /// the listener that clients talk to, on an address that Envoy's admin interface tells.
    pub async fn start_with(
        public: &str,
        config: impl Fn(u16, u16) -> Value,
    ) -> Result<Self, HarnessError> {
        attempted(async || {
            let (dir, internal_port) = (config_dir()?, free_port()?);
            write(&dir.path().join(CONFIG), &config(internal_port, free_port()?).to_string())?;
            let flags = Flags { concurrency: 2, log_level: "warning", public };
            Self::launch(dir, internal_port, &flags, None).await
        })
        .await
    }

    /// Starts Envoy with the configuration in `dir`.
    async fn launch(
        dir: TempDir,
        internal_port: u16,
        flags: &Flags<'_>,
        dynamic: Option<Bootstrap>,
    ) -> Result<Self, HarnessError> {
        let admin_file = dir.path().join("admin");
        let log = dir.path().join("envoy.log");
        let arguments = [
            "--config-path".to_owned(),
            dir.path().join(CONFIG).display().to_string(),
            "--admin-address-path".to_owned(),
            admin_file.display().to_string(),
            "--concurrency".to_owned(),
            flags.concurrency.to_string(),
            "--log-level".to_owned(),
            flags.log_level.to_owned(),
            // Listeners that were replaced go soon, but not before the workers of a slow machine have made
            // their new VMs: until then connections come to the old ones.
            "--drain-time-s".to_owned(),
            "15".to_owned(),
            // Hot restart keeps shared memory by a number that a second Envoy would collide with.
            "--disable-hot-restart".to_owned(),
        ];
        let mut process = ChildProcess::start(&paths::envoy()?, &arguments, &log)?;
        let client = HttpClient::new();
        let started = Instant::now();
        let admin = loop {
            if let Some(address) = ready(&client, &admin_file).await {
                break address;
            }
            let ended = process.ended();
            if ended.is_some() || started.elapsed() > START_TIMEOUT {
                return Err(HarnessError::NotReady {
                    program: "Envoy",
                    waited: started.elapsed(),
                    why: ended.unwrap_or_else(|| "it does not say that it is live".to_owned()),
                    log_tail: process.log_tail(),
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let public = listener_address(&client, admin, flags.public).await?;
        let internal = SocketAddr::from(([127, 0, 0, 1], internal_port));
        Ok(Self { process, admin, public, internal, client, dynamic, dir })
    }

    /// Changes listeners or engines while Envoy runs. What else `change` does has no effect.
    ///
    /// # Errors
    /// When `change` fails, or when Envoy was not started as dynamic.
    pub fn change(
        &mut self,
        change: impl FnOnce(&mut Bootstrap) -> Result<(), HarnessError>,
    ) -> Result<(), HarnessError> {
        let Some(bootstrap) = &mut self.dynamic else {
            return Err(HarnessError::NoSuchPart("file that Envoy watches".to_owned()));
        };
        change(bootstrap)?;
        write_split(bootstrap, self.dir.path())
    }

    /// Where clients send their requests.
    pub fn public(&self) -> SocketAddr {
        self.public
    }

    /// The address of the listener `name`.
    pub async fn listener(&self, name: &str) -> Result<SocketAddr, HarnessError> {
        listener_address(&self.client, self.admin, name).await
    }

    /// The internal listener.
    pub fn internal(&self) -> SocketAddr {
        self.internal
    }

    /// The admin interface.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Envoy's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The directory with Envoy's configuration, `envoy.json`.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Envoy's log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// How Envoy ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        self.process.ended()
    }

    /// All counters and gauges, what the answers so far taught included.
    pub async fn stats(&self) -> Result<Stats, HarnessError> {
        self.settled().await;
        let answer = self.client.get(self.admin, "/stats").await?;
        Ok(parse_stats(&answer.text()))
    }

    /// Waits until what the answers so far taught is taken in.
    pub async fn settled(&self) {
        tokio::time::sleep(SETTLED).await;
    }

    /// What `GET /_warmpath/status` says, what the answers so far taught included.
    pub async fn status(&self) -> Result<HttpAnswer, HarnessError> {
        self.settled().await;
        self.client.get(self.internal, "/_warmpath/status").await
    }

    /// One counter or gauge; 0 if Envoy does not have it, as before its first use.
    pub async fn stat(&self, name: &str) -> Result<u64, HarnessError> {
        Ok(self.stats().await?.get(name).copied().unwrap_or(0))
    }

    /// The metrics as Prometheus sees them.
    pub async fn prometheus(&self) -> Result<String, HarnessError> {
        self.settled().await;
        Ok(self.client.get(self.admin, "/stats/prometheus").await?.text())
    }

    /// Waits until the statistics satisfy `condition`; `what` names it in the error.
    pub async fn wait_for_stats(
        &self,
        what: &str,
        timeout: Duration,
        condition: impl Fn(&Stats) -> bool,
    ) -> Result<Stats, HarnessError> {
        let started = Instant::now();
        loop {
            let stats = self.stats().await?;
            if condition(&stats) {
                return Ok(stats);
            }
            if started.elapsed() > timeout {
                let (what, waited) = (what.to_owned(), started.elapsed());
                return Err(HarnessError::Timeout { what, waited });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until `vms` VMs have loaded a bundle: one a worker, and one for Envoy's main thread.
    pub async fn wait_for_bundles(&self, vms: u32, timeout: Duration) -> Result<(), HarnessError> {
        let loaded = "wasmcustom.warmpath_bundles_loaded_total";
        let all = |stats: &Stats| stats.get(loaded).is_some_and(|count| *count >= u64::from(vms));
        self.wait_for_stats("a bundle in every VM", timeout, all).await.map(drop)
    }
}

/// How Envoy is started.
struct Flags<'a> {
    concurrency: u32,
    log_level: &'a str,
    /// The listener that clients talk to.
    public: &'a str,
}

/// Starts anew, with other ports, where another program was faster to take one.
async fn attempted(
    start: impl AsyncFn() -> Result<EnvoyProcess, HarnessError>,
) -> Result<EnvoyProcess, HarnessError> {
    let mut attempt = 1;
    loop {
        match start().await {
            Err(HarnessError::NotReady { log_tail, .. })
                if attempt < START_ATTEMPTS && log_tail.contains("Address already in use") =>
            {
                attempt += 1;
            }
            result => return result,
        }
    }
}

fn config_dir() -> Result<TempDir, HarnessError> {
    let dir = tempfile::Builder::new().prefix("warmpath-envoy-").tempdir();
    dir.map_err(HarnessError::file(std::env::temp_dir()))
}

/// Writes a configuration in its parts. Envoy sees a file change when another one takes its name.
fn write_split(bootstrap: &Bootstrap, dir: &Path) -> Result<(), HarnessError> {
    let [listeners, hosts] = ["listeners.json", "hosts.json"].map(|name| dir.join(name));
    let [main, listeners_text, hosts_text] = bootstrap.split(&listeners, &hosts)?;
    for (file, text) in [(listeners, listeners_text), (hosts, hosts_text), (dir.join(CONFIG), main)]
    {
        if std::fs::read_to_string(&file).is_ok_and(|written| written == text) {
            continue;
        }
        let new = file.with_extension("new");
        write(&new, &text)?;
        std::fs::rename(&new, &file).map_err(HarnessError::file(&file))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), HarnessError> {
    std::fs::write(file, text).map_err(HarnessError::file(file))
}

async fn ready(client: &HttpClient, admin_file: &std::path::Path) -> Option<SocketAddr> {
    let address: SocketAddr = std::fs::read_to_string(admin_file).ok()?.trim().parse().ok()?;
    let answer = client.get(address, "/ready").await.ok()?;
    (answer.status == 200).then_some(address)
}

async fn listener_address(
    client: &HttpClient,
    admin: SocketAddr,
    name: &str,
) -> Result<SocketAddr, HarnessError> {
    let answer = client.get(admin, "/listeners?format=json").await?.json();
    let listeners = answer["listener_statuses"].as_array().cloned().unwrap_or_default();
    let address = listeners.iter().find(|listener| listener["name"] == name).and_then(|listener| {
        let socket = &listener["local_address"]["socket_address"];
        let port = u16::try_from(socket["port_value"].as_u64()?).ok()?;
        Some(SocketAddr::new(socket["address"].as_str()?.parse().ok()?, port))
    });
    address.ok_or_else(|| HarnessError::Answer {
        from: "Envoy's admin interface".to_owned(),
        why: format!("no address of the listener {name} in {answer}"),
    })
}

/// A port that was free a moment ago. It is none that the system gives out by itself, to servers that ask for
/// any and to each connection: before Envoy has compiled its module and listens, those come and go by the
/// hundred.
pub fn free_port() -> Result<u16, HarnessError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Programs that run side by side begin at different places.
    let first = std::process::id().wrapping_mul(997);
    let mut result = Err(std::io::ErrorKind::AddrInUse.into());
    for _ in 0..FREE_PORTS.len() {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FREE_PORTS.start + (next % FREE_PORTS.len() as u32) as u16;
        result = TcpListener::bind(("127.0.0.1", port)).map(|_| port);
        if result.is_ok() {
            break;
        }
    }
    result.map_err(HarnessError::file("a loopback port"))
}

/// Below what Linux, macOS and Windows give out.
const FREE_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Reads `name: value` lines; histograms, whose values are not numbers, are left out.
fn parse_stats(text: &str) -> Stats {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_counters_and_gauges() {
        let stats = parse_stats("a.b: 3\nh: P0(nan,1.0) P25(nan,1.1)\nc_d: 18446744073709551615\n");
        assert_eq!(stats.get("a.b"), Some(&3));
        assert_eq!(stats.get("c_d"), Some(&u64::MAX));
        assert_eq!(stats.len(), 2);
    }
}
