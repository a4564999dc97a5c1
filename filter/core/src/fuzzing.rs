//! Entry points of the fuzz targets: each asserts an equivalence that holds for any bytes.

use warmpath_bundle::{MistralFormat, MistralVersion};
use warmpath_template::CivilTime;

use crate::answer::{Framing, UsageScanner};
use crate::ask;
use crate::config::{ChatConfig, Config};
use crate::dispatch::Writer;
use crate::endpoints;
use crate::harmony::Mark;
use crate::ids::{BackendId, BlockHash, NowMs};
use crate::index::{Bucket, Index};
use crate::live::Live;
use crate::load::Ledger;
use crate::mistral;
use crate::peers::message::name_hash;
use crate::peers::{Event, Message, loads};
use crate::piece::Piece;
use crate::request::{self, Api, Chat, ChatFormat, PromptInput};
use crate::signals::exposition::Samples;
use crate::signals::{parse_metrics, parse_orca};
use crate::store::MemoryStore;
use crate::withhold::Withholder;

/// A request parses alike with and without white space around it.
///
/// # Panics
/// When the property does not hold.
pub fn request(data: &[u8]) {
    let Some((&choice, body_bytes)) = data.split_first() else { return };
    let Some(api) = Api::ALL.get(usize::from(choice) % Api::ALL.len()) else { return };
    let parsed = request::parse(*api, body_bytes);
    harmony(*api, body_bytes);
    if let Ok(request) = &parsed
        && let PromptInput::Chat(chat) = &request.prompt
    {
        mistral(chat);
    }
    // A byte order mark is one at the very beginning only.
    let (mark, rest) = match body_bytes.strip_prefix("\u{feff}".as_bytes()) {
        Some(rest) => ("\u{feff}", rest),
        None => ("", body_bytes),
    };
    let padded = [mark.as_bytes(), b" \n", rest, b"\t"].concat();
    if !body_bytes.is_empty() {
        assert_eq!(request::parse(*api, &padded), parsed);
    }
    // Asking for usage changes nothing of what is asked for, and is done once.
    if let Some(asking) = ask::for_usage(*api, body_bytes) {
        assert_eq!(request::parse(*api, &asking), parsed);
        assert_eq!(ask::for_usage(*api, &asking), None);
    }
}

/// A prompt in Harmony is made of whole messages: a mark that opens one follows each that closes one.
fn harmony(api: Api, body_bytes: &[u8]) {
    let Ok(request) = request::parse_for(api, body_bytes, |_| ChatFormat::Harmony) else { return };
    let PromptInput::Harmony(conversation) = request.prompt else { return };
    let Ok(pieces) = conversation.pieces(CivilTime::from_unix(0, 0, 0)) else { return };
    let mut is_open = false;
    for piece in &pieces {
        match piece {
            Piece::Mark(Mark::Start) => assert!(!std::mem::replace(&mut is_open, true)),
            Piece::Mark(Mark::End | Mark::Call) => assert!(std::mem::take(&mut is_open)),
            Piece::Mark(_) | Piece::Text(_) => assert!(is_open, "{piece:?}"),
        }
    }
    assert!(is_open, "the assistant's turn");
}

/// A prompt in any version of Mistral's format closes what it opens before it opens more, and shows all media.
fn mistral(chat: &Chat) {
    const PAIRED: [(&str, &str); 5] = [
        ("[INST]", "[/INST]"),
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        ("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        ("[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"),
    ];
    use MistralVersion::{V3, V7, V11, V13, V15};
    for version in [V3, V7, V11, V13, V15] {
        let format = MistralFormat { version, efforts: None };
        let Ok(written) = mistral::write(chat.clone(), &format, &ChatConfig::default()) else {
            continue;
        };
        let mut open = None;
        let mut shown = 0;
        for piece in &written.pieces {
            let Piece::Mark(mark) = piece else { continue };
            shown += usize::from(matches!(*mark, "[IMG]" | "[AUDIO]"));
            if let Some((_, end)) = PAIRED.iter().find(|(start, _)| start == mark) {
                assert_eq!(open.replace(end), None);
            } else if PAIRED.iter().any(|(_, end)| end == mark) {
                assert_eq!(open.take(), Some(mark));
            }
        }
        assert_eq!((open, shown), (None, written.media.len()));
    }
}

/// An answer's usage does not depend on how the answer is cut into chunks.
///
/// # Panics
/// When the property does not hold.
pub fn answer(data: &[u8]) {
    let Some((&cut, answer_bytes)) = data.split_first() else { return };
    let framing = if cut % 2 == 0 { Framing::Json } else { Framing::Sse };
    let mut whole = UsageScanner::new(framing);
    whole.push(answer_bytes);
    let mut cut_up = UsageScanner::new(framing);
    for chunk in answer_bytes.chunks(usize::from(cut / 2) + 1) {
        cut_up.push(chunk);
    }
    assert_eq!(whole.finish(), cut_up.finish());
    withhold(answer_bytes, usize::from(cut / 2) + 1);
}

/// What passes to the client does not depend on it either.
fn withhold(answer_bytes: &[u8], chunk_bytes: usize) {
    let through = |chunk_bytes: usize| {
        let mut withholder = Withholder::default();
        let mut passed: Vec<u8> = Vec::new();
        for chunk in answer_bytes.chunks(chunk_bytes) {
            passed.extend(withholder.push(chunk));
        }
        passed.extend(withholder.finish());
        passed
    };
    let whole = through(answer_bytes.len().max(1));
    assert_eq!(whole, through(chunk_bytes));
    assert!(whole.len() <= answer_bytes.len());
}

/// A damaged bucket decodes to one that reads back as written, and look-ups agree with it.
///
/// # Panics
/// When the property does not hold.
pub fn bucket(data: &[u8]) {
    let bucket = Bucket::decode(data);
    let bytes = bucket.encode();
    assert_eq!(Bucket::decode(&bytes), bucket);
    let key = bucket.nodes.first().and_then(crate::index::Node::key).unwrap_or(BlockHash(0));
    let first = bucket.nodes.iter().find(|node| node.key() == Some(key));
    assert_eq!(crate::index::find(&bytes, key).as_ref(), first);
}

/// A configuration that is accepted keeps every bound it promises, and so does a push of backends: what
/// it brings is there afterwards.
///
/// # Panics
/// When the property does not hold.
pub fn config(data: &[u8]) {
    let pushing = Config::parse(br#"{"push":true}"#).expect("a configuration");
    if let Ok(pushed) = pushing.parse_push(data, NowMs(1)) {
        let store = MemoryStore::default();
        endpoints::push(&store, &pushing, &pushed).expect("a store that does not fail");
        let live = Live::configured(&pushing).refresh(&store, &pushing).expect("the same");
        assert_eq!(live.config.backends.len(), pushed.len());
    }
    if let Ok(config) = Config::parse(data) {
        assert!(!config.backends.is_empty() || config.observe || config.push);
        assert!(!config.observe || config.endpoint_cluster.is_some());
        for backend in &config.backends {
            assert!(backend.cluster.is_some() || backend.address.is_some());
        }
        for (index, model) in config.models.iter().enumerate() {
            assert_eq!(config.model_index(&model.name), Some(index));
        }
    }
}

/// A report does not depend on how lines end, nor on lines without a sample, and keeps its bounds.
///
/// # Panics
/// When the property does not hold.
pub fn signals(data: &[u8]) {
    let report = parse_metrics(data, None);
    let mut other: Vec<u8> = Vec::new();
    for line in data.split_inclusive(|&byte| byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n") else {
            other.extend_from_slice(line);
            continue;
        };
        let is_read = Samples::new(line).next().is_some_and(|sample| sample.read().is_some());
        if is_read {
            other.extend_from_slice(b" \t");
            other.extend_from_slice(text.strip_suffix(b"\r").unwrap_or(text));
            other.extend_from_slice(b"\r\n# \xff\n\n");
        }
    }
    assert_eq!(parse_metrics(&other, None), report);
    if let Ok(report) = report {
        assert!(report.engine.is_some());
        assert!(report.kv_usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)));
        assert!(report.started_at_s.is_none_or(|started| started.is_finite()));
    }
    load_report(data);
}

/// A load report in text says the same with other spaces, and keeps its bounds.
fn load_report(data: &[u8]) {
    let report = parse_orca(data);
    if let Some(list) = data.strip_prefix(b"TEXT ") {
        let spaced = list.split(|&byte| byte == b',').collect::<Vec<_>>().join(&b" , "[..]);
        assert_eq!(parse_orca(&[b"text ", &spaced[..]].concat()), report);
    }
    let usage = report.and_then(|report| report.kv_usage);
    assert!(usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)));
}

/// A peer's message says the same when it is written again, and whatever it tells of a backend and a model that
/// are known is taken in, the tree staying whole.
///
/// # Panics
/// When the property does not hold.
pub fn peers(data: &[u8]) {
    let Ok((mut message, _)) = Message::decode(data) else { return };
    assert_eq!(Message::decode(&message.encode()), Ok((message.clone(), 0)));
    let config = Config::parse(
        br#"{"index_buckets":4,"kv_capacity_tokens":4096,"backends":[{"cluster":"b"}],
            "models":[{"name":"m","sliding_window_tokens":64,"bundle":{"cluster":"c","path":"/m"}}]}"#,
    );
    let config = config.expect("a configuration");
    let known = BackendId::from_name("b");
    for event in &mut message.events {
        match event {
            Event::Sent { backend, model, block_size_tokens, .. } => {
                (*backend, *model, *block_size_tokens) = (known, name_hash("m"), 16);
            }
            Event::Decoded { backend, .. } => *backend = known,
            Event::Serves { .. } => {}
        }
    }
    let (store, now) = (MemoryStore::default(), NowMs(1));
    let mut ledger = Ledger::new(1);
    ledger.open_to_peers(true);
    assert_eq!(loads::record(&store, &message, now), Ok(true));
    assert_eq!(loads::record(&store, &message, now), Ok(false));
    let mut writer = Writer { config: &config, store: &store, ledger: &mut ledger, now };
    let taken = writer.take_in(&[None], message.events.clone());
    assert_eq!(taken.events as usize + taken.foreign.len(), message.events.len());
    assert!(taken.foreign.iter().all(|event| matches!(event, Event::Serves { .. })));
    ledger.look_at_peers(&store, NowMs(1_000)).expect("a store that does not fail");
    for event in &message.events {
        let Event::Sent { hashes, .. } = event else { continue };
        let path = Index::new(config.index_buckets).walk(&store, hashes).expect("the same");
        assert!(path.known_blocks <= hashes.len());
    }
}
