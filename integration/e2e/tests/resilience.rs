//! Engines that die, come and go, and configurations that change, under steady traffic: what is lost.

use std::time::Duration;

use warmpath_e2e::scene::{Scene, SceneOptions, death, failures, scaling};
use warmpath_e2e::steady::Traffic;
use warmpath_harness::{Bootstrap, HarnessError, Variant};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Requests without streams: an answer has no byte until it is whole, so that a retry loses nothing.
fn without_streams() -> Traffic {
    Traffic { streams_of: 0, ..Traffic::default() }
}

/// Envoy repeats whatever broke off before its answer began.
fn retry_resets(bootstrap: &mut Bootstrap) -> Result<(), HarnessError> {
    let route =
        bootstrap.http_mut("public")?.pointer_mut("/route_config/virtual_hosts/0/routes/1/route");
    if let Some(policy) = route.and_then(|route| route.get_mut("retry_policy")) {
        policy["retry_on"] = "connect-failure,refused-stream,reset".into();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_costs_what_it_had_in_flight() {
    let mut scene = Scene::start(&SceneOptions::new(Variant::ClusterHeader)).await;
    let phases = (seconds(5), seconds(8), seconds(8));
    let death = death(&mut scene, Traffic::default(), phases).await;
    let failed = death.failed_besides();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(!death.in_flight.is_empty(), "nothing was in flight");
    assert!(death.traffic_back_after().is_some(), "it gets no traffic");
    assert!(death.false_hits().is_empty(), "{:#?}", death.false_hits());
    scene.wait_until_idle().await;
    scene.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_costs_nothing_where_envoy_retries() {
    let options = SceneOptions { edit: retry_resets, ..SceneOptions::new(Variant::OverrideHost) };
    let mut scene = Scene::start(&options).await;
    let phases = (seconds(5), seconds(8), seconds(8));
    let death = death(&mut scene, without_streams(), phases).await;
    let failed = failures(&death.shots);
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(death.traffic_back_after().is_some(), "it gets no traffic");
    assert!(death.false_hits().is_empty(), "{:#?}", death.false_hits());
    scene.wait_until_idle().await;
    scene.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_nobody_listed_are_found_and_forgotten() {
    let options =
        SceneOptions { engines: 4, observes: true, ..SceneOptions::new(Variant::OverrideHost) };
    let mut scene = Scene::start(&options).await;
    let scaling = scaling(&mut scene, Traffic::default(), seconds(8)).await;
    let failed = failures(&scaling.shots);
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(scaling.first_answers.iter().all(Option::is_some), "{:?}", scaling.first_answers);
    assert_eq!(scaling.backends.len(), 4, "{:?}", scaling.backends);
    scene.wait_until_idle().await;
    scene.front.assert_no_crash().await;
}
