//! Media -> the token where each item's placeholder starts.
//!
//! A template writes a placeholder for each item; the engine's processor then makes as many tokens
//! of it as the item's size asks for, which cannot be known here. So an item is placed at its one
//! placeholder, and what follows it is counted shorter than in the engine. Where no placeholder is
//! found, the item is placed at the prompt's start: prompts with different media then share
//! nothing, which is safe.

use crate::blocks::MediaItem;
use crate::conversation::Placeholders;
use crate::ids::TokenId;
use crate::request::{Media, Modality};

/// A modality's placeholders among the models in use: first the names under which a tokenizer's
/// configuration may have it, then texts to look for, the likeliest first.
struct Known {
    names: &'static [&'static str],
    texts: &'static [&'static str],
}

const IMAGE: Known = Known {
    names: &["image_token", "boi_token"],
    texts: &[
        "<|image_pad|>",
        "<|image|>",
        "<start_of_image>",
        "<image>",
        "[IMG]",
        "<|media_pad|>",
        "<IMG_CONTEXT>",
        "<|imgpad|>",
        "<|image_1|>",
        "<|vision_start|>",
        "<img>",
    ],
};

const AUDIO: Known = Known {
    names: &["audio_token", "boa_token"],
    texts: &["<|audio_pad|>", "<|audio|>", "<|AUDIO|>", "<start_of_audio>", "<audio>", "[AUDIO]"],
};

const VIDEO: Known = Known {
    names: &["video_token"],
    texts: &["<|video_pad|>", "<|video|>", "<|VIDEO|>", "<video>"],
};

/// The placeholders that a model's tokenizer has as tokens of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaceholderTokens {
    image: Vec<(String, TokenId)>,
    audio: Vec<(String, TokenId)>,
    video: Vec<(String, TokenId)>,
}

impl PlaceholderTokens {
    /// Looks for them among the named tokens of a tokenizer's configuration and its added tokens.
    pub(super) fn new(
        named: &[(String, String)],
        added_token_id: impl Fn(&str) -> Option<TokenId>,
    ) -> Self {
        let find = |known: Known| {
            let named = known
                .names
                .iter()
                .filter_map(|name| named.iter().find(|(key, _)| key == name))
                .map(|(_, text)| text.as_str());
            let texts = named.chain(known.texts.iter().copied());
            texts.filter_map(|text| Some((text.to_owned(), added_token_id(text)?))).collect()
        };
        Self { image: find(IMAGE), audio: find(AUDIO), video: find(VIDEO) }
    }

    /// What a template without parts gets to see.
    pub(super) fn texts(&self) -> Placeholders {
        let first = |tokens: &[(String, TokenId)], default: &str| {
            tokens.first().map_or_else(|| default.to_owned(), |(text, _)| text.clone())
        };
        Placeholders {
            image: first(&self.image, "<image>"),
            audio: first(&self.audio, "<audio>"),
            video: first(&self.video, "<video>"),
        }
    }

    /// Places `media`: the n-th item of a modality at the n-th of its placeholders. Linear in the
    /// tokens for each placeholder known.
    pub(super) fn place(&self, tokens: &[TokenId], media: &[Media]) -> Vec<MediaItem> {
        let mut placed = Vec::with_capacity(media.len());
        for modality in [Modality::Image, Modality::Audio, Modality::Video] {
            let known = match modality {
                Modality::Image => &self.image,
                Modality::Audio => &self.audio,
                Modality::Video => &self.video,
            };
            // A template writes one of them, beside others that only frame it.
            let token = known.iter().map(|(_, id)| *id).find(|id| tokens.contains(id));
            let mut places = tokens.iter().enumerate().filter(|(_, id)| Some(**id) == token);
            for item in media.iter().filter(|item| item.modality == modality) {
                let token_index = places.next().map_or(0, |(index, _)| index);
                placed.push(MediaItem { token_index, content_hash: item.content_hash });
            }
        }
        placed.sort_by_key(|item| item.token_index);
        placed
    }
}
