//! Reproducible traffic: shared prefixes and multi-turn chats.
//!
//! In: a [`WorkloadSpec`], seed included. Out: the sessions with every arrival time and every word, so that
//! two runs of one specification send the same requests at the same times. Arrivals are Poisson processes;
//! they do not wait for answers, except that a chat's turn never overtakes its predecessor.
//!
//! Times are in the engines' model time; the load generator divides by its speed.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What traffic to make.
#[derive(Debug, Clone)]
pub struct WorkloadSpec {
    /// Everything random follows from it.
    pub seed: u64,
    /// New sessions arrive this long.
    pub duration: Duration,
    /// Single requests that each start with one of the shared prefixes.
    pub shared: SharedPrefixes,
    /// Chats with prompts of their own.
    pub chats: Chats,
    /// Tokens that an answer may have.
    pub output_tokens: RangeInclusive<u32>,
}

/// Requests over a pool of long shared prefixes (system prompts, documents, examples).
#[derive(Debug, Clone)]
pub struct SharedPrefixes {
    /// Prefixes in the pool.
    pub count: u32,
    /// Tokens of a prefix.
    pub prefix_tokens: RangeInclusive<u32>,
    /// Tokens of the question that follows, different each time.
    pub question_tokens: RangeInclusive<u32>,
    /// Requests a second, over all prefixes, which are equally popular.
    pub requests_per_s: f64,
}

/// Chats: each turn repeats all that was said before.
#[derive(Debug, Clone)]
pub struct Chats {
    /// New chats a second.
    pub chats_per_s: f64,
    /// Turns of a chat.
    pub turns: RangeInclusive<u32>,
    /// Tokens of the first message.
    pub opening_tokens: RangeInclusive<u32>,
    /// Tokens of each later message.
    pub message_tokens: RangeInclusive<u32>,
    /// Seconds from one turn's start to the next one's.
    pub turn_gap_s: RangeInclusive<f64>,
}

/// One request of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// When to send it, from the start of the run.
    pub at: Duration,
    /// What the user says.
    pub user: String,
    /// Tokens that the answer may have.
    pub max_tokens: u32,
}

/// One user's requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// The system prompt, if any.
    pub system: Option<String>,
    /// The requests, in order of time.
    pub turns: Vec<Turn>,
}

/// All sessions, in order of their first request.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The sessions.
    pub sessions: Vec<Session>,
}

impl Workload {
    /// Makes the traffic of `spec`.
    pub fn generate(spec: &WorkloadSpec) -> Self {
        let mut sessions = shared_sessions(spec);
        sessions.extend(chat_sessions(spec));
        sessions.sort_by_key(|session| session.turns.first().map(|turn| turn.at));
        Self { sessions }
    }

    /// Requests in all.
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|session| session.turns.len()).sum()
    }
}

/// Each part of the traffic draws from a stream of its own, so that changing one leaves the others alone.
fn stream(spec: &WorkloadSpec, part: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(spec.seed);
    rng.set_stream(part);
    rng
}

fn shared_sessions(spec: &WorkloadSpec) -> Vec<Session> {
    let shared = &spec.shared;
    let mut rng = stream(spec, 1);
    let prefixes: Vec<String> = (0..shared.count)
        .map(|_| {
            let tokens = rng.random_range(shared.prefix_tokens.clone());
            words(&mut rng, tokens)
        })
        .collect();
    let mut rng = stream(spec, 2);
    arrivals(&mut rng, shared.requests_per_s, spec.duration)
        .into_iter()
        .map(|at| {
            let tokens = rng.random_range(shared.question_tokens.clone());
            let user = words(&mut rng, tokens);
            let max_tokens = rng.random_range(spec.output_tokens.clone());
            let system = prefixes.choose(&mut rng).cloned();
            Session { system, turns: vec![Turn { at, user, max_tokens }] }
        })
        .collect()
}

fn chat_sessions(spec: &WorkloadSpec) -> Vec<Session> {
    let chats = &spec.chats;
    let mut rng = stream(spec, 3);
    arrivals(&mut rng, chats.chats_per_s, spec.duration)
        .into_iter()
        .map(|start| {
            let mut at = start;
            let mut tokens = rng.random_range(chats.opening_tokens.clone());
            let turns = (0..rng.random_range(chats.turns.clone()))
                .map(|_| {
                    let user = words(&mut rng, tokens);
                    let max_tokens = rng.random_range(spec.output_tokens.clone());
                    let turn = Turn { at, user, max_tokens };
                    at += Duration::from_secs_f64(rng.random_range(chats.turn_gap_s.clone()));
                    tokens = rng.random_range(chats.message_tokens.clone());
                    turn
                })
                .collect();
            Session { system: None, turns }
        })
        .collect()
}

/// The times of a Poisson process: gaps are exponential, by inversion.
fn arrivals(rng: &mut ChaCha8Rng, per_s: f64, duration: Duration) -> Vec<Duration> {
    let mut times = Vec::new();
    if per_s <= 0.0 {
        return times;
    }
    let mut at_s = 0.0;
    loop {
        let uniform: f64 = rng.random();
        at_s -= (1.0 - uniform).ln() / per_s;
        if at_s >= duration.as_secs_f64() {
            return times;
        }
        times.push(Duration::from_secs_f64(at_s));
    }
}

/// Text of about `tokens` tokens: common words, which byte-level vocabularies hold whole, with their space.
pub fn words(rng: &mut impl Rng, tokens: u32) -> String {
    let mut text = String::new();
    for i in 0..tokens {
        if i > 0 {
            text.push(' ');
        }
        text.push_str(WORDS.choose(rng).copied().unwrap_or("word"));
    }
    text
}

/// Frequent English words of one token each in the vocabularies of the common model families.
pub(crate) const WORDS: &[&str] = &[
    "about",
    "above",
    "across",
    "action",
    "after",
    "again",
    "against",
    "air",
    "all",
    "along",
    "also",
    "always",
    "among",
    "animal",
    "answer",
    "any",
    "area",
    "around",
    "art",
    "ask",
    "away",
    "back",
    "base",
    "beautiful",
    "because",
    "before",
    "began",
    "being",
    "below",
    "best",
    "better",
    "between",
    "big",
    "bird",
    "black",
    "blue",
    "boat",
    "body",
    "book",
    "both",
    "box",
    "boy",
    "bring",
    "build",
    "business",
    "call",
    "came",
    "car",
    "care",
    "carry",
    "center",
    "change",
    "children",
    "city",
    "class",
    "clear",
    "close",
    "cold",
    "color",
    "come",
    "common",
    "complete",
    "could",
    "country",
    "course",
    "cut",
    "dark",
    "day",
    "deep",
    "different",
    "direct",
    "distance",
    "door",
    "down",
    "draw",
    "drive",
    "dry",
    "during",
    "each",
    "early",
    "earth",
    "east",
    "easy",
    "end",
    "energy",
    "enough",
    "even",
    "ever",
    "every",
    "example",
    "eye",
    "face",
    "fact",
    "family",
    "far",
    "fast",
    "father",
    "feel",
    "few",
    "field",
    "figure",
    "final",
    "find",
    "fine",
    "fire",
    "first",
    "fish",
    "five",
    "follow",
    "food",
    "force",
    "form",
    "four",
    "free",
    "friend",
    "from",
    "front",
    "full",
    "game",
    "gave",
    "general",
    "girl",
    "give",
    "gold",
    "good",
    "government",
    "great",
    "green",
    "ground",
    "group",
    "grow",
    "half",
    "hand",
    "happen",
    "hard",
    "head",
    "hear",
    "heart",
    "heat",
    "heavy",
    "help",
    "here",
    "high",
    "hold",
    "home",
    "horse",
    "hot",
    "hour",
    "house",
    "human",
    "hundred",
    "idea",
    "inside",
    "island",
    "just",
    "keep",
    "kind",
    "king",
    "knew",
    "know",
    "land",
    "language",
    "large",
    "last",
    "late",
    "laugh",
    "lead",
    "learn",
    "leave",
    "left",
    "less",
    "letter",
    "life",
    "light",
    "like",
    "line",
    "list",
    "little",
    "live",
    "long",
    "look",
    "love",
    "low",
    "machine",
    "made",
    "make",
    "many",
    "map",
    "mark",
    "material",
    "matter",
    "mean",
    "measure",
    "men",
    "might",
    "mind",
    "minute",
    "money",
    "month",
    "moon",
    "more",
    "morning",
    "most",
    "mother",
    "mountain",
    "move",
    "much",
    "music",
    "name",
    "near",
    "need",
    "never",
    "new",
    "next",
    "night",
    "north",
    "note",
    "nothing",
    "notice",
    "number",
    "object",
    "often",
    "old",
    "only",
    "open",
    "order",
    "other",
    "over",
    "page",
    "paper",
    "part",
    "pass",
    "pattern",
    "people",
    "person",
    "picture",
    "place",
    "plan",
    "plant",
    "play",
    "point",
    "power",
    "problem",
    "produce",
    "product",
    "question",
    "quick",
    "rain",
    "reach",
    "read",
    "ready",
    "real",
    "record",
    "red",
    "remember",
    "rest",
    "right",
    "river",
    "road",
    "rock",
    "room",
    "round",
    "rule",
    "run",
    "same",
    "school",
    "science",
    "sea",
    "second",
    "seem",
    "sentence",
    "serve",
    "set",
    "several",
    "shape",
    "ship",
    "short",
    "should",
    "show",
    "side",
    "simple",
    "since",
    "sleep",
    "slow",
    "small",
    "snow",
    "some",
    "song",
    "sound",
    "south",
    "space",
    "special",
    "spring",
    "stand",
    "star",
    "start",
    "state",
    "stay",
    "step",
    "still",
    "stood",
    "stop",
    "story",
    "street",
    "strong",
    "study",
    "such",
    "summer",
    "sun",
    "sure",
    "surface",
    "system",
    "table",
    "take",
    "talk",
    "teach",
    "tell",
    "test",
    "than",
    "their",
    "them",
    "then",
    "there",
    "these",
    "thing",
    "think",
    "those",
    "thought",
    "thousand",
    "three",
    "through",
    "time",
    "today",
    "together",
    "took",
    "top",
    "toward",
    "town",
    "travel",
    "tree",
    "true",
    "turn",
    "under",
    "unit",
    "until",
    "usual",
    "very",
    "voice",
    "walk",
    "want",
    "war",
    "warm",
    "watch",
    "water",
    "week",
    "well",
    "west",
    "what",
    "where",
    "which",
    "while",
    "white",
    "whole",
    "why",
    "wind",
    "winter",
    "with",
    "woman",
    "wonder",
    "wood",
    "word",
    "work",
    "world",
    "write",
    "year",
    "young",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(seed: u64) -> WorkloadSpec {
        WorkloadSpec {
            seed,
            duration: Duration::from_secs(100),
            shared: SharedPrefixes {
                count: 4,
                prefix_tokens: 200..=300,
                question_tokens: 10..=20,
                requests_per_s: 5.0,
            },
            chats: Chats {
                chats_per_s: 1.0,
                turns: 2..=4,
                opening_tokens: 50..=60,
                message_tokens: 10..=20,
                turn_gap_s: 3.0..=9.0,
            },
            output_tokens: 10..=30,
        }
    }

    #[test]
    fn one_seed_gives_one_workload() {
        assert_eq!(Workload::generate(&spec(7)), Workload::generate(&spec(7)));
        assert_ne!(Workload::generate(&spec(7)), Workload::generate(&spec(8)));
    }

    #[test]
    fn a_change_of_the_chats_leaves_the_shared_requests_alone() {
        let with_system = |spec: &WorkloadSpec| -> Vec<Session> {
            let sessions = Workload::generate(spec).sessions;
            sessions.into_iter().filter(|session| session.system.is_some()).collect()
        };
        let mut other = spec(7);
        other.chats.chats_per_s = 3.0;
        assert_eq!(with_system(&spec(7)), with_system(&other));
    }

    #[test]
    fn rates_and_sizes_are_as_asked() {
        let workload = Workload::generate(&spec(7));
        let shared: Vec<&Session> =
            workload.sessions.iter().filter(|s| s.system.is_some()).collect();
        // 500 expected, standard deviation 22.
        assert!((400..600).contains(&shared.len()), "{} shared requests", shared.len());
        let chats = workload.sessions.len() - shared.len();
        assert!((60..140).contains(&chats), "{chats} chats");
        let mut prefixes: Vec<&str> = shared.iter().filter_map(|s| s.system.as_deref()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), 4);
        for prefix in prefixes {
            assert!((200..=300).contains(&prefix.split(' ').count()));
        }
        for session in &workload.sessions {
            assert!(session.turns.is_sorted_by_key(|turn| turn.at));
            assert!(session.turns.iter().all(|turn| (10..=30).contains(&turn.max_tokens)));
        }
        assert!(workload.sessions.is_sorted_by_key(|session| session.turns[0].at));
    }
}
