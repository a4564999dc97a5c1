//! Two Envoys with stores of their own, which tell each other what they do.

mod support {
    pub mod worker;
}

use warmpath_core::config::Config;
use warmpath_core::dispatch::Outcome;
use warmpath_core::ids::{BackendIndex, NowMs};
use warmpath_core::limits::{PEER_BLOCKS_MAX, PEER_MESSAGE_BYTES_MAX};
use warmpath_core::metrics::Reason;
use warmpath_core::peers::{self, Event, Message, Taken, loads};
use warmpath_core::residency;
use warmpath_core::route::TokenizedPrompt;
use warmpath_core::store::MemoryStore;

use support::worker::{Worker, config, prompt};

/// A worker whose Envoy has peers.
fn open<'a>(config: &'a Config, store: &'a MemoryStore, nonce: u64) -> Worker<'a> {
    let mut worker = Worker::new(config, store, nonce);
    worker.ledger.open_to_peers(true);
    worker
}

/// The next message of `from`, read, when it is due.
fn message(from: &mut Worker<'_>) -> Option<Message> {
    let due_ms = from.ledger.tells_in_ms(50, from.now)?;
    from.now = NowMs(from.now.0 + due_ms);
    assert_eq!(from.ledger.tells_in_ms(50, from.now), Some(0));
    let envoy = peers::envoy_id(from.store, 99).unwrap();
    let bytes = from.ledger.message(envoy, from.now);
    assert!(bytes.len() <= PEER_MESSAGE_BYTES_MAX);
    let (message, unknown) = Message::decode(&bytes).unwrap();
    assert_eq!(unknown, 0);
    Some(message)
}

/// `to` takes in a message.
fn hear(to: &mut Worker<'_>, message: Message) -> Option<Taken> {
    let is_new = loads::record(to.store, &message, to.now).unwrap();
    let taken = is_new.then(|| to.writer().take_in(&[None], message.events));
    to.now = NowMs(to.now.0 + 100);
    to.ledger.look_at_peers(to.store, to.now).unwrap();
    taken
}

/// `from` tells `to` all that is new.
fn tell(from: &mut Worker<'_>, to: &mut Worker<'_>) -> Taken {
    let message = message(from).expect("news");
    hear(to, message).expect("new to the peer")
}

fn held(worker: &mut Worker<'_>, prompt: &TokenizedPrompt) -> Option<(BackendIndex, u32)> {
    let pick = worker.decide(prompt.clone());
    (pick.reason == Reason::PrefixHit).then(|| (pick.order[0], pick.prompt.cached_tokens))
}

#[test]
fn what_one_sent_the_other_finds_at_the_same_backend() {
    let config = config(4, Some(1 << 20));
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    let (mut a, mut b) = (open(&config, &here, 1), open(&config, &there, 2));
    for seed in 0..20 {
        let (pick, verdict) = a.serve(prompt(seed, 2_000, (seed, 50)), |_| 0, |_| 1);
        assert_eq!(verdict.predicted_cached_tokens, 0);
        assert_eq!(held(&mut b, &prompt(seed, 2_000, (900, 50))), None);
        let taken = tell(&mut a, &mut b);
        assert_eq!((taken.events, taken.foreign.len(), taken.written.lost_updates), (2, 0, 0));
        let follow_up = prompt(seed, 2_000, (900, 50));
        assert_eq!(held(&mut b, &follow_up), Some((pick.order[0], 2_000)));
    }
    // Their clocks have seen the same.
    for backend in &config.backends {
        let epoch = |store| residency::load(store, backend.id, 0).unwrap();
        assert_eq!(epoch(&here), epoch(&there), "{}", backend.name);
    }
}

#[test]
fn what_one_runs_weighs_at_the_other_until_it_is_not_heard_of() {
    let config = config(2, None);
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    let (mut a, mut b) = (open(&config, &here, 1), open(&config, &there, 2));
    let (pick, mut dispatched) = a.send(prompt(1, 4_000, (1, 10)));
    let busy = pick.order[0];
    // The prompt is kept back a little; its load is not.
    let first = message(&mut a).unwrap();
    assert_eq!((first.loads.len(), first.events.len()), (1, 0));
    hear(&mut b, first);
    for seed in 10..30 {
        let (other, verdict) = b.serve(prompt(seed, 500, (seed, 10)), |_| 0, |_| 1);
        assert_ne!(other.order[0], busy, "it has 4,010 tokens to prefill for a peer");
        assert_eq!(verdict.predicted_cached_tokens, 0);
    }
    let id = config.backend(busy).unwrap().id;
    let totals = b.ledger.totals(b.store, b.now).unwrap();
    assert_eq!(totals.load(id).running, 0, "not its own");
    assert_eq!(totals.load_with_peers(id).pending_prefill_tokens, 4_010);

    a.writer().first_byte(&mut dispatched, true);
    assert_eq!(tell(&mut a, &mut b).events, 1);
    let pending = |b: &Worker<'_>| {
        let totals = b.ledger.totals(b.store, b.now).unwrap();
        (totals.load_with_peers(id).running, totals.load_with_peers(id).pending_prefill_tokens)
    };
    assert_eq!(pending(&b), (1, 0));
    // Nothing happens for long, and it is told again.
    a.now = NowMs(a.now.0 + 1_000);
    b.now = NowMs(b.now.0 + loads::LEASE_MS - 200);
    tell(&mut a, &mut b);
    b.now = NowMs(b.now.0 + loads::LEASE_MS - 200);
    b.ledger.look_at_peers(b.store, b.now).unwrap();
    assert_eq!((pending(&b), b.ledger.peers.envoys), ((1, 0), 1));
    b.now = NowMs(b.now.0 + 200);
    b.ledger.look_at_peers(b.store, b.now).unwrap();
    assert_eq!((pending(&b), b.ledger.peers.envoys), ((0, 0), 0));
    // The end is news too; then there is none.
    let _ = a.writer().finish(dispatched, Outcome::Answered, None);
    assert!(message(&mut a).unwrap().loads.is_empty());
    a.now = NowMs(a.now.0 + 60_000);
    assert_eq!(message(&mut a), None);
}

#[test]
fn what_is_refused_or_abandoned_at_once_is_never_told() {
    let config = config(1, Some(1 << 20));
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    let (mut a, mut b) = (open(&config, &here, 1), open(&config, &there, 2));
    for (seed, outcome) in [Outcome::Refused, Outcome::Shed, Outcome::ClientLeft, Outcome::NotSent]
        .into_iter()
        .enumerate()
    {
        let prompt = prompt(seed as u32, 2_000, (1, 10));
        let (_, dispatched) = a.send(prompt.clone());
        // The load is.
        tell(&mut a, &mut b);
        let running = b.ledger.peers.loads.values().map(|load| load.running).sum::<u32>();
        assert_eq!(running, 1, "{outcome:?}");
        let (written, _) = a.writer().finish(dispatched, outcome, None);
        assert_eq!(written.lost_updates, 0);
        a.now = NowMs(a.now.0 + 1_000);
        let told = message(&mut a).unwrap();
        assert_eq!((told.loads.len(), told.events.len()), (0, 0), "{outcome:?}");
        hear(&mut b, told);
        assert_eq!(held(&mut b, &prompt), None);
        assert_eq!(a.ledger.tells_in_ms(50, a.now), None);
    }
    // What takes longer is told before its answer has begun.
    let slow = prompt(9, 2_000, (1, 10));
    let (_, dispatched) = a.send(slow.clone());
    tell(&mut a, &mut b);
    assert_eq!(held(&mut b, &slow), None);
    let told = message(&mut a).unwrap();
    assert_eq!(told.events.len(), 1);
    hear(&mut b, told);
    assert!(held(&mut b, &slow).is_some());
    let _ = a.writer().finish(dispatched, Outcome::Answered, None);
}

#[test]
fn an_answer_that_takes_no_time_is_told_at_once() {
    let config = config(1, None);
    let store = MemoryStore::default();
    let mut a = open(&config, &store, 1);
    let (_, dispatched) = a.send(prompt(1, 2_000, (1, 10)));
    let _ = a.writer().finish(dispatched, Outcome::Answered, None);
    assert_eq!(a.ledger.tells_in_ms(50, a.now), Some(0));
    assert_eq!(message(&mut a).unwrap().events.len(), 1);
    // The next one waits for its turn.
    let (_, dispatched) = a.send(prompt(2, 2_000, (1, 10)));
    assert_eq!(a.ledger.tells_in_ms(50, a.now), Some(50));
    let _ = a.writer().finish(dispatched, Outcome::Answered, None);
}

#[test]
fn output_counts_whatever_the_size_of_its_blocks() {
    let json = serde_json::json!({
        "kv_capacity_tokens": 1 << 20,
        "backends": [{"cluster": "a", "models": ["n"]}, {"cluster": "b", "models": ["m"]}],
        "models": [
            {"name": "n", "block_size_tokens": 64, "bundle": {"cluster": "c", "path": "/n"}},
            {"name": "m", "bundle": {"cluster": "c", "path": "/m"}},
        ],
    });
    let config = Config::parse(json.to_string().as_bytes()).unwrap();
    let store = MemoryStore::default();
    let mut b = open(&config, &store, 1);
    let backend = config.backends[1].id;
    let before = residency::change(&store, backend, 1 << 16, |_| {}).unwrap();
    let taken = b.writer().take_in(&[None, None], vec![Event::Decoded { backend, blocks: 9 }]);
    assert_eq!((taken.events, taken.written.lost_updates), (1, 0));
    let after = residency::load(&store, backend, 1 << 16).unwrap();
    assert_eq!((after.capacity_blocks, after.own_blocks), (before.capacity_blocks, 9));
}

#[test]
fn a_message_counts_once_however_often_and_in_whatever_order_it_comes() {
    let config = config(2, None);
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    let (mut a, mut b) = (open(&config, &here, 1), open(&config, &there, 2));
    let mut messages = Vec::new();
    for seed in 0..3 {
        a.serve(prompt(seed, 1_600, (1, 0)), |_| 0, |_| 1);
        messages.push(message(&mut a).unwrap());
    }
    for index in [2, 0, 2, 1, 1, 0] {
        hear(&mut b, messages[index].clone());
    }
    for backend in &config.backends {
        let blocks = |store| residency::load(store, backend.id, 0).unwrap().own_blocks;
        assert_eq!(blocks(&here), blocks(&there), "{}", backend.name);
    }
}

#[test]
fn what_is_not_known_here_is_given_back() {
    let (known, other) = (config(2, None), config(3, None));
    let (here, there) = (MemoryStore::default(), MemoryStore::default());
    let (mut a, mut b) = (open(&other, &here, 1), open(&known, &there, 2));
    let mut seed = 0;
    let unknown = other.backends[2].id;
    let event = loop {
        seed += 1;
        let (pick, dispatched) = a.send(prompt(seed, 160, (seed, 10)));
        let _ = a.writer().finish(dispatched, Outcome::Answered, None);
        let told = message(&mut a).unwrap();
        if other.backend(pick.order[0]).unwrap().id == unknown {
            break told.events[0].clone();
        }
    };
    let taken = b.writer().take_in(&[None], vec![event.clone()]);
    assert_eq!(taken.foreign.first(), Some(&event));
    // A model or a block size that differs would make nonsense of the hashes.
    let Event::Sent { model, block_size_tokens, prompt_tokens, hashes, .. } = event else {
        panic!("{event:?}")
    };
    let backend = known.backends[0].id;
    for (model, block_size_tokens) in [(model ^ 1, block_size_tokens), (model, 32)] {
        let hashes = hashes.clone();
        let event = Event::Sent { backend, model, block_size_tokens, prompt_tokens, hashes };
        let taken = b.writer().take_in(&[None], vec![event]);
        assert_eq!((taken.events, taken.foreign.len()), (0, 1));
    }
}

#[test]
fn a_message_is_bounded_and_says_so() {
    let config = config(1, None);
    let store = MemoryStore::default();
    let mut a = open(&config, &store, 1);
    // The beginning of a prompt of 300k tokens is told, of each of them, as long as there is room.
    for seed in 0..20 {
        let (_, dispatched) = a.send(prompt(seed, 300_000, (seed, 10)));
        let _ = a.writer().finish(dispatched, Outcome::Answered, None);
    }
    let message = message(&mut a).unwrap();
    assert!((2..20).contains(&message.events.len()), "{}", message.events.len());
    for event in &message.events {
        let Event::Sent { hashes, .. } = event else { panic!("{event:?}") };
        assert_eq!(hashes.len(), PEER_BLOCKS_MAX);
    }
    let dropped = a.ledger.outbox.take_dropped();
    assert_eq!(dropped as usize, 20 - message.events.len());
}

#[test]
fn nothing_is_noted_where_there_are_no_peers() {
    let config = config(2, None);
    let store = MemoryStore::default();
    let mut a = Worker::new(&config, &store, 1);
    a.serve(prompt(1, 160, (1, 10)), |_| 0, |_| 1);
    assert_eq!(a.ledger.tells_in_ms(50, a.now), None);
    let keys = store.size().0;
    a.ledger.look_at_peers(&store, a.now).unwrap();
    assert_eq!(store.size().0, keys);
    a.ledger.open_to_peers(true);
    a.serve(prompt(2, 160, (2, 10)), |_| 0, |_| 1);
    assert!(a.ledger.tells_in_ms(50, a.now).is_some());
    let first = message(&mut a).unwrap();
    a.ledger.open_to_peers(false);
    a.serve(prompt(3, 160, (3, 10)), |_| 0, |_| 1);
    assert_eq!(a.ledger.tells_in_ms(50, a.now), None);
    // Opened again, it goes on numbering.
    a.ledger.open_to_peers(true);
    a.serve(prompt(4, 160, (4, 10)), |_| 0, |_| 1);
    let second = message(&mut a).unwrap();
    assert_eq!((second.vm, second.sequence), (first.vm, first.sequence + 1));
    assert_eq!(second.events.len(), 2);
}
