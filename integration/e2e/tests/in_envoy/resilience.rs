//! Engines that die, come and go, and configurations that change, under steady traffic: what is lost.

use std::time::Duration;

use warmpath_e2e::poll;
use warmpath_e2e::scene::{
    Scene, SceneOptions, chaos, death, failures, reload, retry_resets, scaling,
};
use warmpath_e2e::steady::Traffic;
use warmpath_harness::Variant;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Requests without streams: an answer has no byte until it is whole, so that a retry loses nothing.
fn without_streams() -> Traffic {
    Traffic { streams_of: 0, ..Traffic::default() }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_loses_no_request_and_keeps_the_tree() {
    let mut scene = Scene::start(&SceneOptions::new(Variant::OverrideHost)).await;
    let reload = reload(&mut scene, Traffic::default(), seconds(8)).await;
    let failed = failures(&reload.shots);
    assert!(failed.is_empty(), "{failed:#?}");
    // Every VM was made anew, and none forgot: the prefixes are still hits at once.
    let [_, recoded] = reload.changed;
    let after = reload.shots.iter().filter(|shot| shot.sent > recoded && shot.prefix < 40);
    let (mut hits, mut all) = (0, 0);
    for shot in after {
        all += 1;
        hits += usize::from(shot.decision.starts_with("prefix_hit"));
    }
    assert!(hits * 100 > all * 95, "{hits} of {all}");
    scene.wait_until_idle().await;
    scene.front.assert_no_crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_at_random_leave_nothing_behind() {
    let options = SceneOptions { observes: true, ..SceneOptions::new(Variant::OverrideHost) };
    let listed = SceneOptions::new(Variant::ClusterHeader);
    for (options, seed) in [(options, 7), (listed, 8)] {
        let mut scene = Scene::start(&options).await;
        let chaos = chaos(&mut scene, seconds(15), seed).await;
        assert!(chaos.different.is_empty(), "{:#?}", chaos.different);
        let good = chaos.shots.iter().filter(|shot| shot.is_good()).count();
        assert!(chaos.compared * 2 > good, "only {} of {good} compared", chaos.compared);
        poll::until_equal("the gauge to follow", 0, async || {
            scene.front.metric("requests_in_flight").await
        })
        .await;
        scene.front.assert_no_crash().await;
    }
}
