//! Shapes of conversations: rendering without the template engine.
//!
//! Most requests differ from one before only in their messages' texts. What a
//! template writes for them is then the same sequence of pieces, its own text
//! and the messages' texts, and a memo of such sequences spares the engine,
//! which costs several times what the rest of a short prompt does.
//!
//! In: a request. Out: its prompt, byte for byte as the engine renders it, or
//! nothing, and then the engine renders.
//!
//! Why the bytes are the same: a shape is learned from a render in which each
//! text is a mark, and in which every operation that could see a text passes a
//! guard ([`guard`]). The guard fails the render unless the operation's result
//! depends on a text in no other way than by containing it whole. Such a render
//! takes the same course whatever the texts are, so what it writes, with the
//! texts in the marks' places, is what the engine writes for any texts. Where a
//! template asks whether a text begins with, ends with or contains a string of
//! its own, the answer becomes a condition ([`conditions`]), and the shape holds
//! for the texts that answer alike; the engine renders the others. All
//! else that a render depends on is the key ([`key`]): what is equal there is
//! equal for the engine. What fails under guard is remembered as opaque and
//! left to the engine; so are errors. Fuel depends on the texts' lengths; it is
//! bounded from above by two renders whose marks differ in length, and where
//! the bound meets a limit, the engine decides.
//!
//! Bounds: messages, bytes of a key, shapes and their bytes; see
//! [`crate::limits`]. A lookup walks the request once, without its texts.

mod conditions;
pub(crate) mod guard;
mod key;
mod marks;

use std::collections::HashMap;
use std::hash::BuildHasher;

use serde_json::Value as Json;

use crate::ChatRequest;
use crate::error::RenderError;
use crate::limits::{
    RenderLimits, SHAPE_MISSES_MAX, SHAPES_BYTES_MAX, SHAPES_MAX, SHAPES_SEEN_MAX, TEXT_BYTES_MAX,
};
use crate::py::text::strip;
use conditions::Condition;
use guard::Probe;
pub(crate) use key::Keyed;
use marks::Piece;
pub(crate) use marks::is_marked;

/// What a unit of fuel pays for, in bytes.
const FUEL_BYTES: u64 = 64;

/// By how much longer the marks of the second render are. A multiple of [`FUEL_BYTES`], so that charges
/// that are rounded down are rounded alike.
const FILLER_BYTES: usize = 1024;

/// How a memo was used; counts since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShapeCounts {
    /// Prompts that came from a shape.
    pub hits: u64,
    /// Shapes learned.
    pub learned: u64,
    /// Shapes that depend on texts, and are left to the engine.
    pub opaque: u64,
    /// Shapes that were learned, but not as the engine renders them. None, unless an operation's rule is
    /// wrong; such a shape is left to the engine.
    pub refuted: u64,
}

/// What the memo knows of a request.
pub(crate) enum Found<'a> {
    /// Its shape.
    Shape(&'a Shape),
    /// The shape came before, and is to be learned.
    Again,
    /// Nothing, or that the engine has to render.
    Nothing,
}

/// Why a shape is left to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It depends on texts, or fails with marks for them.
    Opaque,
    /// Its pieces are not what the engine renders.
    Refuted,
}

/// The pieces that a template writes.
pub(crate) struct Shape {
    pieces: Vec<Piece>,
    /// Fuel of a render whose texts are as long as marks.
    fuel: u64,
    /// Fuel for [`FILLER_BYTES`] more of each text.
    fuel_filler: u64,
    /// What the texts must answer.
    conditions: Vec<Condition>,
}

struct Entry {
    key: Box<[u8]>,
    /// `None`: opaque.
    shape: Option<Shape>,
    /// The last lookup that found it.
    used: u64,
    bytes: usize,
    /// Lookups in a row whose texts did not answer alike.
    misses: u32,
}

/// The shapes of one model's templates.
#[derive(Default)]
pub(crate) struct ShapeMemo {
    /// By their keys' hashes; the keys are compared.
    entries: HashMap<u64, Entry>,
    /// The hash of the key that was looked up last.
    hash: u64,
    /// Bytes of all entries.
    bytes: usize,
    lookups: u64,
    /// Hashes of keys that came once, a ring.
    seen: Vec<u64>,
    seen_next: usize,
    buffer: Vec<u8>,
    counts: ShapeCounts,
}

impl ShapeMemo {
    /// Reads a request; `None` where it has no shape.
    pub(crate) fn key<'a>(
        &mut self,
        name: &str,
        chat: &ChatRequest<'a>,
        depth_max: usize,
    ) -> Option<Keyed<'a>> {
        Keyed::new(std::mem::take(&mut self.buffer), name, chat, depth_max)
    }

    /// Takes back a key that is no longer needed, for its memory.
    pub(crate) fn give_back(&mut self, keyed: Keyed<'_>) {
        self.buffer = keyed.bytes;
    }

    pub(crate) fn counts(&self) -> ShapeCounts {
        self.counts
    }

    pub(crate) fn count_hit(&mut self) {
        self.counts.hits += 1;
    }

    /// Looks a request up.
    pub(crate) fn find(&mut self, keyed: &Keyed<'_>) -> Found<'_> {
        self.lookups += 1;
        let hash = self.entries.hasher().hash_one(keyed.bytes.as_slice());
        self.hash = hash;
        match self.entries.get_mut(&hash) {
            Some(entry) if *entry.key == *keyed.bytes => {
                entry.used = self.lookups;
                let holds = entry.shape.as_ref().is_none_or(|shape| shape.holds(&keyed.texts));
                entry.misses = if holds { 0 } else { entry.misses + 1 };
                return match &entry.shape {
                    Some(shape) if holds => Found::Shape(shape),
                    Some(_) if entry.misses > SHAPE_MISSES_MAX => Found::Again,
                    _ => Found::Nothing,
                };
            }
            _ if self.seen.contains(&hash) => return Found::Again,
            _ => {}
        }
        match self.seen.get_mut(self.seen_next) {
            Some(slot) => *slot = hash,
            None => self.seen.push(hash),
        }
        self.seen_next = (self.seen_next + 1) % SHAPES_SEEN_MAX;
        Found::Nothing
    }

    /// Keeps what was learned of the request that was looked up last: its shape, or that it has none.
    pub(crate) fn insert(&mut self, keyed: &Keyed<'_>, shape: Result<Shape, Refusal>) {
        match shape {
            Ok(_) => self.counts.learned += 1,
            Err(Refusal::Opaque) => self.counts.opaque += 1,
            Err(Refusal::Refuted) => self.counts.refuted += 1,
        }
        let shape = shape.ok();
        let bytes = keyed.bytes.len() + shape.as_ref().map_or(0, Shape::bytes);
        if bytes > SHAPES_BYTES_MAX {
            return;
        }
        // Of two keys with one hash, the later takes the place.
        self.remove(self.hash);
        while self.entries.len() >= SHAPES_MAX || self.bytes + bytes > SHAPES_BYTES_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(hash, _)| *hash) else {
                break;
            };
            self.remove(oldest);
        }
        let key = keyed.bytes.as_slice().into();
        self.entries.insert(self.hash, Entry { key, shape, used: self.lookups, bytes, misses: 0 });
        self.bytes += bytes;
    }

    fn remove(&mut self, hash: u64) {
        if let Some(entry) = self.entries.remove(&hash) {
            self.bytes -= entry.bytes;
        }
    }
}

impl Shape {
    /// Learns a shape from two renders with marks. `render` renders under guard with a probe; it gives
    /// the prompt and the fuel it took, or `None` where it failed. `prompt` is what the engine renders.
    pub(crate) fn learn(
        keyed: &Keyed<'_>,
        messages: &Json,
        prompt: &str,
        probe: &Probe,
        render: impl Fn(&Json) -> Option<(String, u64)>,
    ) -> Result<Self, Refusal> {
        let shape = Self::of_marks(keyed, messages, probe, render).ok_or(Refusal::Opaque)?;
        // What is learned is exact by its making; this makes a mistake in that harmless where it shows.
        match shape.write(&keyed.texts, usize::MAX) {
            Some(Ok(written)) if written == prompt => Ok(shape),
            _ => Err(Refusal::Refuted),
        }
    }

    fn of_marks(
        keyed: &Keyed<'_>,
        messages: &Json,
        probe: &Probe,
        render: impl Fn(&Json) -> Option<(String, u64)>,
    ) -> Option<Self> {
        if marks::is_marked_bytes(&keyed.bytes) {
            return None;
        }
        let marked = |filler_bytes| {
            let mark = |at, text: &str| marks::mark(at, key::is_blank(text), filler_bytes);
            probe.start(&keyed.texts);
            let rendered = render(&key::with_texts(messages, mark));
            let conditions = probe.finish()?;
            let (text, fuel) = rendered?;
            Some((text, fuel, conditions))
        };
        let (text, fuel, conditions) = marked(0)?;
        let (_, fuel_long, conditions_long) = marked(FILLER_BYTES)?;
        if conditions != conditions_long {
            return None;
        }
        let pieces = marks::parse(&text)?;
        let fuel_filler = fuel_long.saturating_sub(fuel);
        Some(Self { pieces, fuel, fuel_filler, conditions })
    }

    /// Whether texts answer the template's questions as those did that taught the shape.
    fn holds(&self, texts: &[&str]) -> bool {
        self.conditions.iter().all(|condition| condition.holds(texts))
    }

    fn bytes(&self) -> usize {
        let literals = self.pieces.iter().map(|piece| match piece {
            Piece::Literal(text) => text.len(),
            Piece::Content { .. } => 0,
        });
        let others: usize = self.conditions.iter().map(|condition| condition.other.len()).sum();
        literals.sum::<usize>()
            + self.pieces.len() * size_of::<Piece>()
            + others
            + self.conditions.len() * size_of::<Condition>()
    }

    /// Renders a request of this shape with these texts; `None` where the engine might meet a limit
    /// before the end.
    pub(crate) fn render(
        &self,
        keyed: &Keyed<'_>,
        limits: &RenderLimits,
    ) -> Option<Result<String, RenderError>> {
        let longest = keyed.texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let fuel = self.fuel_max(u64::try_from(longest).ok()?);
        // Each text that a template makes is paid for, so the fuel bounds the longest as well.
        let text_max = u64::try_from(TEXT_BYTES_MAX).ok()? / FUEL_BYTES;
        if fuel >= limits.fuel || fuel >= text_max {
            return None;
        }
        self.write(&keyed.texts, limits.output_bytes_max)
    }

    /// An upper bound on the fuel of a render with texts of at most `bytes`. A charge is linear in the
    /// texts' lengths, rounded down, so that two renders give the slope for all texts together.
    fn fuel_max(&self, bytes: u64) -> u64 {
        let filler_units = u64::try_from(FILLER_BYTES).unwrap_or(u64::MAX) / FUEL_BYTES;
        let slope = self.fuel_filler.saturating_add(1);
        let more = slope.saturating_mul(bytes.div_ceil(FUEL_BYTES)).div_ceil(filler_units);
        self.fuel.saturating_add(more).saturating_add(1)
    }

    /// The pieces with these texts; `None` when a text is missing.
    fn write(&self, texts: &[&str], bytes_max: usize) -> Option<Result<String, RenderError>> {
        let part = |piece| Self::part(piece, texts);
        let mut bytes = 0_usize;
        for piece in &self.pieces {
            bytes = bytes.saturating_add(part(piece)?.len());
        }
        if bytes > bytes_max {
            return Some(Err(RenderError::OutputTooLong { bytes_max }));
        }
        let mut prompt = String::with_capacity(bytes);
        for piece in &self.pieces {
            prompt.push_str(part(piece)?);
        }
        Some(Ok(prompt))
    }

    fn part<'t>(piece: &'t Piece, texts: &[&'t str]) -> Option<&'t str> {
        match piece {
            Piece::Literal(text) => Some(text),
            Piece::Content { at, stripped } => {
                let text = texts.get(*at)?;
                Some(stripped.map_or(*text, |ends| strip(text, None, ends)))
            }
        }
    }
}
