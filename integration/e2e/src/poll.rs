//! Waiting for what must happen soon.
//!
//! In: a condition. Out: what it gave, or a panic that says what was still missing. The deadline is long
//! because machines may be busy; no test depends on how long anything took.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Longer than anything takes that is going to happen at all.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Asks again and again until `probe` says `Ok`; its last `Err` is what the panic says.
pub async fn until<T, E: Debug>(what: &str, mut probe: impl AsyncFnMut() -> Result<T, E>) -> T {
    let started = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(last) if started.elapsed() > DEADLINE => {
                panic!("still waiting for {what}; the last that was seen: {last:?}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Asks until `probe` gives `expected`.
pub async fn until_equal<T: PartialEq + Debug>(
    what: &str,
    expected: T,
    mut probe: impl AsyncFnMut() -> T,
) {
    until(what, async || {
        let seen = probe().await;
        if seen == expected { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Waits for `future`, and panics if it does not end.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting for {what}"),
    }
}
