//! Clients that leave, a hundred at a time and at every stage: nothing stays counted.

use http_body_util::BodyExt;
use serde_json::json;
use warmpath_e2e::bed::{Bed, FrontOptions, post, unique_id};
use warmpath_e2e::client::raw::RawConnection;
use warmpath_e2e::client::{Body, Connection, Version, whole};
use warmpath_e2e::fleet::{ID_HEADER, fast, slow_decode, totals};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_harness::Variant;

const CLIENTS: u64 = 100;

async fn in_flight_is(bed: &Bed, expected: u64) {
    poll::until_equal("the filter's gauge of requests in flight", expected, async || {
        bed.front.metric("requests_in_flight").await
    })
    .await;
}

async fn envoy_has_active(bed: &Bed, expected: u64) {
    poll::until_equal("Envoy's requests", expected, async || {
        bed.front.stats().await["http.public.downstream_rq_active"]
    })
    .await;
}

/// Everything is idle, and what comes next is served.
async fn all_is_quiet(bed: &Bed) {
    envoy_has_active(bed, 0).await;
    in_flight_is(bed, 0).await;
    poll::until_equal("the engines to be idle", 0, async || totals(&bed.fleet).await.open).await;
    bed.front.assert_no_crash().await;
}

fn streaming_request(connection: &Connection, number: u32) -> http::Request<Body> {
    let mut body = completion(&prompt(number, 4));
    body["stream"] = json!(true);
    body["max_tokens"] = json!(100_000);
    let id = unique_id();
    let headers = [("content-type", "application/json"), (ID_HEADER, id.as_str())];
    connection.request("POST", "/v1/completions", &headers, whole(body.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_the_body() {
    for variant in Variant::ALL {
        let bed = Bed::start(&FrontOptions::new(variant), 2).await;
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let mut connection = RawConnection::open(bed.front.address()).await;
            // Some have sent their head only, some half of the body; some say how long it will be.
            let framing = match client % 2 {
                0 => "content-length: 100000\r\n\r\n",
                _ => "transfer-encoding: chunked\r\n\r\n8000\r\n",
            };
            let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{framing}");
            connection.write(head.as_bytes()).await;
            if client % 4 > 1 {
                connection.write(&[b' '; 20_000]).await;
            }
            clients.push(connection);
        }
        envoy_has_active(&bed, CLIENTS).await;
        drop(clients);
        all_is_quiet(&bed).await;
        assert!(bed.fleet.served().await.unwrap().is_empty(), "an engine got half a request");
        assert_eq!(bed.front.decisions().await.len(), 0);
        assert_eq!(bed.complete(&prompt(1, 4)).await.state, "finished");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_byte() {
    let bed = Bed::with_fleet(&FrontOptions::new(Variant::ClusterHeader), &fast(2)).await;
    for engine in 0..2 {
        bed.fleet.fail(engine, "hang").await.unwrap();
    }
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let mut connection = bed.front.connect(Version::Http1).await;
        clients.push(tokio::spawn(async move {
            let body = completion(&prompt(client as u32, 4));
            post(&mut connection, "/v1/completions", &body, &[]).await;
        }));
    }
    in_flight_is(&bed, CLIENTS).await;
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    all_is_quiet(&bed).await;
    for engine in 0..2 {
        bed.fleet.fail(engine, "ok").await.unwrap();
    }
    // What was never answered is not taken for cached: all of these are new to the engines.
    for number in 0..10 {
        assert_eq!(bed.complete(&prompt(number, 4)).await.cached_tokens, Some(0));
    }
    assert_eq!(bed.front.decisions().await.get("prefix_hit"), None);
    assert_eq!(bed.front.metric("backend_failures_total").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_the_stream() {
    for variant in Variant::ALL {
        let bed = Bed::with_fleet(&FrontOptions::new(variant), &slow_decode(2)).await;
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let mut connection = bed.front.connect(Version::Http1).await;
            let request = streaming_request(&connection, number as u32);
            clients.push(tokio::spawn(async move {
                let response = connection.start(request).await.expect("an answer");
                let mut body = response.into_body();
                let first = body.frame().await.expect("a chunk").expect("no error");
                assert!(first.is_data());
                (connection, body)
            }));
        }
        let mut streams = Vec::new();
        for client in clients {
            streams.push(poll::within("a first chunk", client).await.expect("no panic"));
        }
        in_flight_is(&bed, CLIENTS).await;
        assert_eq!(totals(&bed.fleet).await.open, CLIENTS);
        drop(streams);
        all_is_quiet(&bed).await;
        let totals = totals(&bed.fleet).await;
        assert_eq!((totals.aborted, totals.finished), (CLIENTS, 0), "{variant:?}");
        assert_eq!(bed.front.metric("backend_failures_total").await, 0, "{variant:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_resetting_streams_of_one_connection() {
    let bed = Bed::with_fleet(&FrontOptions::new(Variant::OverrideHost), &slow_decode(2)).await;
    let connection = bed.front.connect(Version::Http2).await;
    let mut streams = Vec::new();
    for number in 0..CLIENTS {
        let mut stream = connection.clone();
        let request = streaming_request(&stream, number as u32);
        let response = poll::within("a head", stream.start(request)).await.expect("an answer");
        assert_eq!(response.status(), 200);
        streams.push(response.into_body());
    }
    in_flight_is(&bed, CLIENTS).await;
    // Half of them with a byte of the answer, half without.
    for body in streams.iter_mut().step_by(2) {
        poll::within("a chunk", body.frame()).await.expect("a chunk").expect("no error");
    }
    drop(streams);
    all_is_quiet(&bed).await;
    assert_eq!(totals(&bed.fleet).await.aborted, CLIENTS);
    // The connection itself lives.
    let mut same = connection.clone();
    let (_, answer) = post(&mut same, "/v1/completions", &completion(&prompt(1, 4)), &[]).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_die_under_their_streams_leave_nothing_counted() {
    let mut bed = Bed::with_fleet(&FrontOptions::new(Variant::OverrideHost), &slow_decode(2)).await;
    let mut streams = Vec::new();
    for number in 0..CLIENTS {
        let mut connection = bed.front.connect(Version::Http1).await;
        let request = streaming_request(&connection, number as u32);
        let response = poll::within("a head", connection.start(request)).await.expect("an answer");
        streams.push((response.into_body(), connection));
    }
    in_flight_is(&bed, CLIENTS).await;
    bed.fleet.kill(0);
    bed.fleet.kill(1);
    for (body, _) in streams {
        let end = poll::within("the end of the stream", body.collect()).await;
        assert!(end.is_err(), "a broken stream looks like a whole one");
    }
    envoy_has_active(&bed, 0).await;
    in_flight_is(&bed, 0).await;
    bed.front.assert_no_crash().await;
}
