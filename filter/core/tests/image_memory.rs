//! Media is hashed where it lies: a body with an image of 20 MB is read without a copy of it.

#![allow(unsafe_code, reason = "counting allocations takes an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use warmpath_core::request::{Api, Part, PromptInput, parse};

struct Counting;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK_BYTES.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const IMAGE_BYTES: usize = 20 << 20;

/// The most memory that reading `body` held at once.
fn peak_bytes(api: Api, body: &str) -> usize {
    let before = HELD_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(before, Ordering::Relaxed);
    let request = parse(api, body.as_bytes()).expect("parses");
    let PromptInput::Chat(chat) = request.prompt else { panic!("no chat") };
    let mut parts = chat.messages.iter().flat_map(|message| message.content.iter().flatten());
    assert!(parts.any(|part| matches!(part, Part::Media { .. })), "no image was found");
    PEAK_BYTES.load(Ordering::Relaxed) - before
}

#[test]
fn an_image_of_20_mb_is_not_copied() {
    let data = "QUJD".repeat(IMAGE_BYTES / 4);
    // Slashes are escaped by some clients.
    let escaped = "QU\\/D".repeat(IMAGE_BYTES / 5);
    for data in [data, escaped] {
        let url = format!("data:image/png;base64,{data}");
        let openai = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
        );
        let anthropic = format!(
            r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":[{{"type":"image",
            "source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}]}}"#
        );
        let responses = format!(
            r#"{{"input":[{{"role":"user","content":[{{"type":"input_image","image_url":"{url}"}}]}}]}}"#
        );
        let ollama =
            format!(r#"{{"messages":[{{"role":"user","content":"x","images":["{data}"]}}]}}"#);
        for (api, body) in [
            (Api::ChatCompletions, openai),
            (Api::Messages, anthropic),
            (Api::Responses, responses),
            (Api::OllamaChat, ollama),
        ] {
            let peak = peak_bytes(api, &body);
            assert!(
                peak < IMAGE_BYTES / 100,
                "{api:?}: {peak} bytes for an image of {IMAGE_BYTES}"
            );
        }
    }
}
