//! Clients that leave, a hundred at a time and at every stage: nothing stays counted.

use http_body_util::BodyExt;
use warmpath_e2e::bed::{Bed, FrontOptions, difference, post, streaming_request};
use warmpath_e2e::client::Version;
use warmpath_e2e::client::raw::RawConnection;
use warmpath_e2e::fleet::{Totals, slow_decode, totals};
use warmpath_e2e::poll;
use warmpath_e2e::prompts::{completion, prompt};
use warmpath_harness::Variant;

const CLIENTS: u64 = 100;
const ENGINES: usize = 2;

async fn clients_leave(variant: Variant) {
    let options = FrontOptions::new(variant);
    let mut bed = Bed::with_fleet(&options, &slow_decode(ENGINES)).await;
    in_the_middle_of_the_body(&bed).await;
    before_the_first_byte(&bed).await;
    in_the_middle_of_the_stream(&bed).await;
    by_resetting_streams_of_one_connection(&bed).await;
    when_their_engines_die(&mut bed).await;
    bed.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_leave_by_cluster_header() {
    clients_leave(Variant::ClusterHeader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_leave_by_override_host() {
    clients_leave(Variant::OverrideHost).await;
}

async fn in_flight_is(bed: &Bed, expected: u64) {
    let gauge = async || bed.front.metric("requests_in_flight").await;
    poll::until_equal("the filter's gauge of requests in flight", expected, gauge).await;
}

async fn envoy_has_active(bed: &Bed, expected: u64) {
    let active = async || bed.front.stats().await["http.public.downstream_rq_active"];
    poll::until_equal("Envoy's requests", expected, active).await;
}

async fn all_is_quiet(bed: &Bed) {
    envoy_has_active(bed, 0).await;
    in_flight_is(bed, 0).await;
    poll::until_equal("the engines to be idle", 0, async || totals(&bed.fleet).await.open).await;
}

async fn in_the_middle_of_the_body(bed: &Bed) {
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let mut connection = RawConnection::open(bed.front.address()).await;
        // Some say how long the body will be; some have sent their head only, some a part of the body.
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
    envoy_has_active(bed, CLIENTS).await;
    drop(clients);
    all_is_quiet(bed).await;
    assert!(bed.fleet.served().await.unwrap().is_empty(), "an engine got half a request");
    assert!(bed.front.decisions().await.is_empty());
}

async fn before_the_first_byte(bed: &Bed) {
    let before = bed.front.decisions().await;
    for engine in 0..ENGINES {
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
    in_flight_is(bed, CLIENTS).await;
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    all_is_quiet(bed).await;
    for engine in 0..ENGINES {
        bed.fleet.fail(engine, "ok").await.unwrap();
    }
    // What was never answered is not taken for cached: all of these are new to the engines.
    for number in 0..10 {
        assert_eq!(bed.complete(&prompt(number, 4)).await.cached_tokens, Some(0));
    }
    let decisions = difference(&before, &bed.front.decisions().await);
    assert_eq!(
        decisions.into_iter().collect::<Vec<_>>(),
        [("prefix_miss".to_owned(), CLIENTS + 10)]
    );
    assert_eq!(bed.front.metric("backend_failures_total").await, 0);
}

async fn in_the_middle_of_the_stream(bed: &Bed) {
    let before = totals(&bed.fleet).await;
    let mut streams = Vec::new();
    for number in 0..CLIENTS {
        let mut connection = bed.front.connect(Version::Http1).await;
        let (_, request) = streaming_request(&connection, &prompt(number as u32, 4), 100_000);
        streams.push(tokio::spawn(async move {
            let mut body = connection.start(request).await.expect("an answer").into_body();
            let first = body.frame().await.expect("a chunk").expect("no error");
            assert!(first.is_data());
            (connection, body)
        }));
    }
    let mut open = Vec::new();
    for stream in streams {
        open.push(poll::within("a first chunk", stream).await.expect("no panic"));
    }
    in_flight_is(bed, CLIENTS).await;
    assert_eq!(totals(&bed.fleet).await.open, CLIENTS);
    drop(open);
    all_were_aborted(bed, before).await;
}

async fn by_resetting_streams_of_one_connection(bed: &Bed) {
    let before = totals(&bed.fleet).await;
    let connection = bed.front.connect(Version::Http2).await;
    let mut streams = Vec::new();
    for number in 0..CLIENTS {
        let mut stream = connection.clone();
        let (_, request) = streaming_request(&stream, &prompt(number as u32, 4), 100_000);
        let response = poll::within("a head", stream.start(request)).await.expect("an answer");
        streams.push(response.into_body());
    }
    in_flight_is(bed, CLIENTS).await;
    // Half of them with a part of the answer, half perhaps without.
    for body in streams.iter_mut().step_by(2) {
        poll::within("a chunk", body.frame()).await.expect("a chunk").expect("no error");
    }
    drop(streams);
    all_were_aborted(bed, before).await;
    // The connection itself lives.
    let mut same = connection.clone();
    let (_, answer) = post(&mut same, "/v1/completions", &completion(&prompt(1, 4)), &[]).await;
    assert_eq!(answer.status, 200);
}

async fn all_were_aborted(bed: &Bed, before: Totals) {
    all_is_quiet(bed).await;
    let after = totals(&bed.fleet).await;
    let expected = Totals { open: 0, finished: before.finished, aborted: before.aborted + CLIENTS };
    assert_eq!(after, expected);
    assert_eq!(bed.front.metric("backend_failures_total").await, 0);
}

async fn when_their_engines_die(bed: &mut Bed) {
    let mut streams = Vec::new();
    for number in 0..CLIENTS {
        let mut connection = bed.front.connect(Version::Http1).await;
        let (_, request) = streaming_request(&connection, &prompt(number as u32, 4), 100_000);
        let response = poll::within("a head", connection.start(request)).await.expect("an answer");
        streams.push((response.into_body(), connection));
    }
    in_flight_is(bed, CLIENTS).await;
    for engine in 0..ENGINES {
        bed.fleet.kill(engine);
    }
    for (body, _) in streams {
        let end = poll::within("the end of the stream", body.collect()).await;
        assert!(end.is_err(), "a broken stream looks like a whole one");
    }
    envoy_has_active(bed, 0).await;
    in_flight_is(bed, 0).await;
    assert_eq!(bed.front.metric("backend_failures_total").await, CLIENTS);
}
