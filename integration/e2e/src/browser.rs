//! Headless Chromium, driven by its own driver.
//!
//! ChromeDriver speaks WebDriver, JSON over HTTP, so nothing but the two programs is needed; a distribution
//! packages both in one version. Chromium hangs on a pipe to its driver, and so ends with it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use warmpath_harness::http::{HttpClient, JSON, request};
use warmpath_harness::process::ChildProcess;

use crate::poll;

/// What Chromium runs with: alone, and without asking anybody for anything.
const ARGUMENTS: &[&str] = &[
    "--headless",
    // Its sandbox needs rights that neither root nor most containers have. It opens our own page only.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
];

/// A browser with one window.
#[derive(Debug)]
pub struct Browser {
    driver: SocketAddr,
    client: HttpClient,
    session: String,
    _process: ChildProcess,
    // Holds the driver's log.
    _dir: TempDir,
}

/// Chromium and its driver; `None` where one is missing.
pub fn programs() -> Option<(PathBuf, PathBuf)> {
    let path = std::env::var_os("PATH")?;
    let find = |name| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|it| it.exists());
    Some((find("chromium")?, find("chromedriver")?))
}

impl Browser {
    /// Starts a browser; `None` where there is none.
    pub async fn start() -> Option<Self> {
        let (chromium, driver) = programs()?;
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("chromedriver.log");
        let process =
            ChildProcess::start(&driver, &["--port=0".to_owned()], &log).expect("chromedriver");
        let port = poll::until("chromedriver to listen", async || {
            let log = process.log();
            let port = log.split("successfully on port ").nth(1);
            let port = port.and_then(|rest| rest.split('.').next()?.trim().parse().ok());
            port.ok_or(log)
        })
        .await;
        let mut browser = Self {
            driver: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            client: HttpClient::new(),
            session: String::new(),
            _process: process,
            _dir: dir,
        };
        let options = json!({"binary": chromium, "args": ARGUMENTS});
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let started = browser.call("POST", "/session", &capabilities).await;
        let session = started["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{session}");
        Some(browser)
    }

    /// Makes the window so many pixels wide and high, and light or dark.
    pub async fn resize(&self, width: u32, height: u32, scheme: &str) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.in_session("POST", "/url", &json!({"url": url})).await;
    }

    /// What the body of a function gives in the page, with `arguments` as its `arguments`.
    pub async fn run(&self, function: &str, arguments: &[Value]) -> Value {
        let script = json!({"script": function, "args": arguments});
        self.in_session("POST", "/execute/sync", &script).await
    }

    /// What the page's console says and has not said before: level and message.
    pub async fn console(&self) -> Vec<(String, String)> {
        let entries = self.in_session("POST", "/se/log", &json!({"type": "browser"})).await;
        let text =
            |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| (text(entry, "level"), text(entry, "message"))).collect()
    }

    /// Writes a picture of the whole page, what has to be scrolled to included, to `file`.
    pub async fn picture(&self, file: &Path) -> Picture {
        let size = "return [innerWidth, document.documentElement.scrollHeight]";
        let size = self.run(size, &[]).await;
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let what = json!({"captureBeyondViewport": true, "clip": clip});
        let answer = self.devtools("Page.captureScreenshot", what).await;
        let bytes = STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("base64");
        std::fs::write(file, &bytes).expect("a file for the picture");
        Picture::of(&bytes)
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let command = json!({"cmd": command, "params": parameters});
        self.in_session("POST", "/goog/cdp/execute", &command).await
    }

    async fn in_session(&self, method: &str, path: &str, body: &Value) -> Value {
        self.call(method, &format!("{}{path}", self.session), body).await
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = Bytes::from(body.to_string());
        let request = request(method, self.driver, path, JSON, body).expect("a request");
        let answer = poll::within("the browser", self.client.send(request)).await;
        let answer = answer.expect("chromedriver answers");
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        answer.json()["value"].take()
    }
}

/// What a picture is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Different colours.
    pub colours: usize,
    /// The part of all pixels that have the most frequent colour.
    pub background: f64,
}

impl Picture {
    fn of(file: &[u8]) -> Self {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut pixels).expect("a picture");
        let mut counts: std::collections::HashMap<&[u8], usize> = std::collections::HashMap::new();
        let pixel_bytes = info.color_type.samples();
        for pixel in pixels.chunks_exact(pixel_bytes) {
            *counts.entry(pixel).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        Self {
            width: info.width,
            height: info.height,
            colours: counts.len(),
            background: most as f64 / f64::from(info.width * info.height),
        }
    }
}
