//! A peer's events -> the tree and the cache clocks, as if the requests had been sent from here.
//!
//! Dates and depths are this Envoy's own: what a peer says is which blocks went where. So a prompt is
//! looked up in the tree here, and its backend's clock here tells what the backend had to allocate for it.

use std::rc::Rc;

use crate::config::Backend;
use crate::dispatch::{Writer, Written};
use crate::model::Model;
use crate::peers::message::{Event, name_hash};
use crate::reported::NOTHING;
use crate::residency::{self, Activity};
use crate::route::{PlacedPrompt, Router, TokenizedPrompt};
use crate::store::SharedStore;

/// What became of a message's events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many were taken in.
    pub events: u64,
    /// Those about backends, models or block sizes that the configuration does not know, and about hosts.
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
        let known = |id| config.backends.iter().find(|it| it.id == id);
        match event {
            Event::Sent { backend, model, block_size_tokens, prompt_tokens, hashes } => {
                let is_it = |it: &crate::config::Model| {
                    name_hash(&it.name) == *model
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
                self.sent_by_peer(models, known(*backend)?, prompt, written);
            }
            Event::Decoded { backend, blocks } => {
                let (backend, blocks) = (known(*backend)?, *blocks);
                let activity = Activity {
                    allocated_blocks: blocks,
                    moved: Vec::new(),
                    touched_blocks: blocks,
                };
                // Whatever its blocks are here.
                let result = residency::change(self.store, backend.id, 0, |clock| {
                    clock.record(&activity);
                });
                written.lost_updates += u64::from(result.is_err());
            }
            // The caller keeps the list of endpoints.
            Event::Serves { .. } => return None,
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
}
