//! The status page in a browser, in front of a real Envoy under load.
//!
//! Needs chromium and chromedriver; without them the test passes and says that it was skipped. Pictures go
//! to `.cache/page.png` and, dark and narrow, beside it.

use std::time::Duration;

use serde_json::{Value, json};
use warmpath_e2e::bed::{Front, FrontOptions, post};
use warmpath_e2e::browser::{self, Browser, Picture};
use warmpath_e2e::client::Version;
use warmpath_e2e::poll;
use warmpath_harness::fleet::{Fleet, FleetOptions};
use warmpath_harness::load::{self, LoadOptions};
use warmpath_harness::workload::{Chats, SharedPrefixes, Workload, WorkloadSpec};
use warmpath_harness::{Variant, paths};

const ENGINES: usize = 8;

/// A name that would be markup, were it not written as text.
const HOSTILE: &str = "<b id=x onclick=y>engine & \"7\"</b>";

/// Seconds of traffic before the pictures: enough for the charts to have a shape.
const WARM_UP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_a_fleet_under_load() {
    if browser::programs().is_none() {
        return eprintln!("skipped: the status page in a browser (no chromium, no chromedriver)");
    }
    let browser = Browser::start().await.expect("a browser");
    let fleet =
        Fleet::start(&FleetOptions::named(ENGINES, "a100-13b", 4.0).unwrap()).await.unwrap();
    let front = front(&fleet).await;
    let traffic = tokio::spawn(traffic(front.envoy.public()));
    browser.resize(1400, 1000, "light").await;
    browser.open(&format!("http://{}/_warmpath/", front.envoy.internal())).await;

    rows_are_live(&browser).await;
    tokio::time::sleep(WARM_UP).await;
    figures_are_there(&browser).await;
    a_request_is_explained(&browser, &front).await;
    pictures_are_not_blank(&browser).await;
    assert_eq!(severe(&browser).await, [""; 0]);

    front.assert_no_crash().await;
    drop(front);
    an_envoy_that_is_gone_is_told(&browser).await;
    traffic.abort();
}

async fn front(fleet: &Fleet) -> Front {
    let backends = fleet.addresses().iter().enumerate().map(|(engine, address)| {
        let name =
            if engine == ENGINES - 1 { HOSTILE.to_owned() } else { format!("engine-{engine}") };
        json!({"name": name, "address": address.to_string()})
    });
    let mut options = FrontOptions::new(Variant::OverrideHost);
    options.bundle = Some(paths::demo_bundle().expect("the demo's bundle"));
    options.config_patch = json!({"backends": backends.collect::<Vec<Value>>()});
    let front = options.start(fleet.addresses()).await;
    // One a worker, and the main thread's.
    front.wait_for_bundles(3).await;
    front
}

/// Chats and shared prefixes for as long as the test may take.
async fn traffic(target: std::net::SocketAddr) {
    let workload = Workload::generate(&WorkloadSpec {
        seed: 7,
        duration: Duration::from_secs(1200),
        shared: SharedPrefixes {
            count: 14,
            prefix_tokens: 1_500..=3_000,
            question_tokens: 20..=80,
            requests_per_s: 5.0,
        },
        chats: Chats {
            chats_per_s: 0.4,
            turns: 3..=5,
            opening_tokens: 200..=600,
            message_tokens: 20..=80,
            turn_gap_s: 6.0..=15.0,
        },
        output_tokens: 40..=120,
    });
    let timeout = Duration::from_secs(60);
    let options =
        LoadOptions { target, model: "demo".to_owned(), speed: 4.0, in_flight_max: 500, timeout };
    load::run(&options, &workload, |_| ()).await;
}

/// The texts of a table's rows, cell by cell.
async fn cells(browser: &Browser, table: &str) -> Vec<Vec<String>> {
    let rows = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]
        .map(row => [...row.children].map(cell => cell.innerText))";
    serde_json::from_value(browser.run(rows, &[json!(table)]).await).expect("rows of text")
}

async fn text(browser: &Browser, selector: &str) -> String {
    let text = "return document.querySelector(arguments[0])?.innerText ?? ''";
    browser.run(text, &[json!(selector)]).await.as_str().unwrap_or_default().to_owned()
}

async fn rows_are_live(browser: &Browser) {
    let rows = poll::until("a row for each backend, and requests in flight", async || {
        let rows = cells(browser, "#backends").await;
        let busy = rows.iter().filter(|row| row[3] != "0").count();
        if rows.len() == ENGINES && busy > 1 { Ok(rows) } else { Err(rows) }
    })
    .await;
    for (engine, row) in rows.iter().enumerate() {
        let name = row[0].lines().next().unwrap();
        if engine == ENGINES - 1 {
            assert_eq!(name, HOSTILE);
        } else {
            assert_eq!(name, format!("engine-{engine}"));
        }
        assert!(row[0].contains("127.0.0.1:"), "{row:?}");
        assert!(row[1].contains("healthy") && row[2] == "configured", "{row:?}");
    }
    assert_eq!(browser.run("return document.querySelectorAll('b').length", &[]).await, 0);
}

async fn figures_are_there(browser: &Browser) {
    let tiles = text(browser, "#tiles").await;
    for name in ["Requests in flight", "Decisions a second", "Hit share", "Cached tokens"] {
        assert!(tiles.contains(name), "{tiles}");
    }
    assert!(tiles.contains('%'), "{tiles}");
    let heads = text(browser, "header").await;
    assert!(heads.contains("kv_cost") && heads.contains("warmpath"), "{heads}");
    let hits = "return document.querySelector('#rate path.hit').getAttribute('d').length";
    assert!(browser.run(hits, &[]).await.as_u64().unwrap() > 100, "the chart has no hits");
    assert_eq!(browser.run("return document.querySelectorAll('.spark').length", &[]).await, 8);
    let rows = cells(browser, "#backends").await;
    let reported = rows.iter().filter(|row| row[7].contains('%') && row[7].contains(" ago"));
    assert_eq!(reported.count(), ENGINES, "{rows:#?}");
    let models = cells(browser, "#models").await;
    assert!(models[0][0] == "demo" && models[0][1].contains("loaded"), "{models:?}");
    assert!(models[0][3].contains(" 0 disagree"), "{models:?}");
    assert!(text(browser, "#tree").await.contains("MiB"));
    assert_eq!(text(browser, "#banner").await, "");
}

/// The next turn of a chat that was sent a moment ago, and a path that is no API's.
async fn a_request_is_explained(browser: &Browser, front: &Front) {
    let question = "Where is the prefix of this prompt? ".repeat(150);
    let mut chat = json!({"model": "demo", "messages": [{"role": "user", "content": question}]});
    chat["max_tokens"] = json!(4);
    let mut connection = front.connect(Version::Http1).await;
    let (_, answer) = post(&mut connection, "/v1/chat/completions", &chat, &[]).await;
    assert_eq!(answer.status, 200);
    let turn = json!({"role": "user", "content": "Say it again."});
    chat["messages"].as_array_mut().unwrap().push(turn);
    let chat = serde_json::to_string_pretty(&chat).unwrap();

    let (_, said) = explained(browser, "/v1/x", &chat, "other_path").await;
    assert!(said.contains("is not read"), "{said}");
    let (rows, said) = explained(browser, "/v1/chat/completions", &chat, "chat_completions").await;
    for fact in ["Known to the tree", "costs", " tokens", "token ids"] {
        assert!(said.contains(fact), "{said}");
    }
    assert!(["prefix_hit", "load_over_prefix"].iter().any(|it| said.contains(it)), "{said}");
    let picked: Vec<&Vec<String>> = rows.iter().filter(|row| row[0].contains("picked")).collect();
    assert!(picked.len() == 1 && picked[0][1].starts_with('1'), "{rows:?}");
    assert!(rows.iter().any(|row| number(&row[3]) > 50.0), "who was sent the first turn: {rows:?}");
    let terms: f64 = picked[0][7..11].iter().map(|cell| number(cell)).sum();
    assert!((terms - number(&picked[0][11])).abs() <= 3.0, "the sum of rounded terms: {picked:?}");
}

/// Fills the explain box in and waits for an explanation with `fact`; its rows, and all of its text.
async fn explained(
    browser: &Browser,
    path: &str,
    body: &str,
    fact: &str,
) -> (Vec<Vec<String>>, String) {
    let ask = "document.getElementById('path').value = arguments[0];
        document.getElementById('body').value = arguments[1];
        document.getElementById('ask').click()";
    browser.run(ask, &[json!(path), json!(body)]).await;
    poll::until("an explanation", async || {
        let explained = text(browser, "#explained").await;
        if !explained.contains(fact) {
            return Err(explained);
        }
        // Not before: until then it may be the rows of the explanation before.
        let rows = cells(browser, "#explained").await;
        if rows.len() == ENGINES { Ok((rows, explained)) } else { Err(explained) }
    })
    .await
}

/// The number in a cell's first line.
fn number(cell: &str) -> f64 {
    cell.lines().next().unwrap().replace(',', "").parse().unwrap()
}

async fn pictures_are_not_blank(browser: &Browser) {
    let cache = paths::repository().join(".cache");
    for (file, width, scheme) in [
        ("page-narrow.png", 390, "light"),
        ("page-dark.png", 1400, "dark"),
        ("page.png", 1400, "light"),
    ] {
        browser.resize(width, 1000, scheme).await;
        // One more status, so that the charts are drawn for the new width.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let overflow = "return document.documentElement.scrollWidth - innerWidth";
        assert_eq!(browser.run(overflow, &[]).await, 0, "{file}: wider than the window");
        let picture: Picture = browser.picture(&cache.join(file)).await;
        println!("{}: {picture:?}", cache.join(file).display());
        assert!(picture.width == width && picture.height > 1000, "{file}: {picture:?}");
        assert!(picture.colours > 50 && picture.background < 0.97, "{file}: {picture:?}");
    }
}

async fn severe(browser: &Browser) -> Vec<String> {
    let said = browser.console().await.into_iter();
    said.filter(|(level, _)| level == "SEVERE").map(|(_, message)| message).collect()
}

async fn an_envoy_that_is_gone_is_told(browser: &Browser) {
    poll::until("the banner", async || {
        let banner = text(browser, "#banner").await;
        if banner.contains("cannot be read: no connection") { Ok(()) } else { Err(banner) }
    })
    .await;
    assert_eq!(cells(browser, "#backends").await.len(), ENGINES, "what was read stays");
}
