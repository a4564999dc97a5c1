//! A peer's events -> the tree and the cache clocks, as if the requests had been sent from here.
//!
//! Dates and depths are this Envoy's own: what a peer says is which blocks went where. So a prompt is
//! looked up in the tree here, and its backend's clock here tells what the backend had to allocate for it.

use std::rc::Rc;

use crate::config::Backend;
use crate::dispatch::{Writer, Written};
use crate::ids::BlockHash;
use crate::index::{Change, Path};
use crate::model::Model;
use crate::peers::message::{Event, model_hash};
use crate::reported::NOTHING;
use crate::residency::Activity;
use crate::route::{PlacedPrompt, Router, TokenizedPrompt};
use crate::store::SharedStore;

/// What became of a message's events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many were taken in.
    pub events: u64,
    /// Those about backends, models or block sizes that the configuration does not know.
    pub foreign: Vec<Event>,
    /// What the others changed.
    pub written: Written,
}

impl<S: SharedStore> Writer<'_, S> {
    /// Takes in what happened at another Envoy, by a message that [`super::loads::record`] found to be new.
    /// `models` are the loaded ones, at the positions of the configuration's.
    pub fn take_in(&mut self, models: &[Option<Rc<Model>>], events: Vec<Event>) -> Taken {
        let mut taken = Taken::default();
        for event in events {
            match self.take_in_event(models, &event, &mut taken.written) {
                Some(()) => taken.events += 1,
                None => taken.foreign.push(event),
            }
        }
        taken
    }

    fn take_in_event(
        &mut self,
        models: &[Option<Rc<Model>>],
        event: &Event,
        written: &mut Written,
    ) -> Option<()> {
        let config = self.config;
        let backend = config.backends.iter().find(|it| it.id == event.backend())?;
        let of_first = || config.models.first().map_or(1, |it| it.block_size_tokens.get());
        match event {
            Event::Sent { model, block_size_tokens, prompt_tokens, hashes, .. } => {
                let is_it = |it: &crate::config::Model| {
                    model_hash(&it.name) == *model
                        && it.block_size_tokens.get() == *block_size_tokens
                };
                let model_index = config.models.iter().position(is_it)?;
                let prompt = TokenizedPrompt {
                    model_index,
                    prompt_tokens: *prompt_tokens as usize,
                    hashes: hashes.clone(),
                    output_tokens_max: None,
                    session: None,
                    cache_read_tokens_max: None,
                };
                self.sent_by_peer(models, backend, prompt, written);
            }
            Event::TakenBack { hashes, .. } => {
                self.taken_back_by_peer(backend, hashes, of_first(), written);
            }
            Event::Decoded { blocks, .. } => {
                let blocks = *blocks;
                let activity = Activity {
                    allocated_blocks: blocks,
                    moved: Vec::new(),
                    touched_blocks: blocks,
                };
                self.change_clock(backend, of_first(), written, |clock| clock.record(&activity));
            }
        }
        Some(())
    }

    fn sent_by_peer(
        &mut self,
        models: &[Option<Rc<Model>>],
        backend: &Backend,
        prompt: TokenizedPrompt,
        written: &mut Written,
    ) {
        let router = Router {
            config: self.config,
            models,
            store: self.store,
            ledger: self.ledger,
            reported: &NOTHING,
            explorer: None,
            now: self.now,
            random: 0,
            turn: 0,
        };
        let found = router.walk(&prompt).map(|path| path.held_by(backend.id)).and_then(|path| {
            let matched = router.matches(&prompt, &path)?.remove(&backend.id).unwrap_or_default();
            Ok((path, matched))
        });
        let Ok((path, matched)) = found else {
            written.lost_updates += 1;
            return;
        };
        let prompt = PlacedPrompt {
            model_index: prompt.model_index,
            prompt_tokens: prompt.prompt_tokens,
            block_size_tokens: router.block_size_tokens(&prompt).get(),
            window: router.window(&prompt),
            hashes: prompt.hashes,
            path,
            ..PlacedPrompt::default()
        };
        self.enter(backend, &prompt, &matched, written);
    }

    /// Takes back what only one request was sent for: if it was another one's, that one is still here.
    fn taken_back_by_peer(
        &mut self,
        backend: &Backend,
        hashes: &[BlockHash],
        block_size_tokens: u32,
        written: &mut Written,
    ) {
        let index = self.index();
        let Ok(path) = index.walk(self.store, hashes) else {
            written.lost_updates += 1;
            return;
        };
        let Path { segments, .. } = path.held_by(backend.id);
        let mut changes = Vec::new();
        let mut blocks = 0;
        for segment in &segments {
            let (Some(key), Some(holder)) = (hashes.get(segment.start), segment.holders.first())
            else {
                continue;
            };
            blocks += u32::from(holder.depth.saturating_sub(holder.shared_depth));
            changes.push(Change { key: *key, depth_before: 0, retained_before: u64::MAX });
        }
        let taken_back = index.take_back(self.store, backend.id, &changes);
        written.evicted_blocks += taken_back.removed_blocks as u64;
        written.lost_updates += taken_back.lost_updates as u64;
        let activity =
            Activity { allocated_blocks: blocks, moved: Vec::new(), touched_blocks: blocks };
        self.change_clock(backend, block_size_tokens, written, |clock| {
            clock.take_back(&activity, clock.mark());
        });
    }
}
