//! Requests of every API that vLLM has, in conversations that grow and share their beginnings.
//!
//! Reproducible by its seed. Every request has one prompt, as the engine's usage names the sum of a
//! batch's.

use serde_json::{Value, json};

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The path.
    pub path: &'static str,
    /// The body.
    pub body: Value,
}

/// Words of several scripts, some of which no tokenizer has whole.
const WORDS: [&str; 24] = [
    "the",
    "cache",
    "holds",
    "blocks",
    "of",
    "a",
    "prefix",
    "while",
    "requests",
    "wander",
    "über",
    "naïve",
    "данные",
    "読み",
    "تجربة",
    "🚀",
    "fn main()",
    "{\"k\": 1}",
    "1234.5",
    "\n\n",
    "—",
    "zzyzx",
    "tokens",
    "again",
];

/// Numbers from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn words(&mut self, count: usize) -> String {
        let words: Vec<&str> = (0..count).map(|_| WORDS[self.below(WORDS.len())]).collect();
        words.join(" ")
    }
}

/// Requests for `model`, without end.
pub fn requests(model: &str, seed: u64) -> impl Iterator<Item = Ask> {
    let mut draw = Draw(seed);
    // A handful of system prompts, as long as those that are worth a cache.
    let systems: Vec<String> = (0..4).map(|_| draw.words(120)).collect();
    let mut talks: Vec<Talk> = (0..14).map(|number| Talk::new(number, &systems)).collect();
    std::iter::repeat_with(move || {
        let which = draw.below(talks.len());
        let talk = &mut talks[which];
        let ask = talk.ask(model, &mut draw);
        if talk.turns > 9 {
            *talk = Talk::new(talk.number + 14, &systems);
        }
        ask
    })
}

/// A conversation, in the API that it keeps to.
struct Talk {
    number: usize,
    system: String,
    /// Turns of the user and the assistant.
    history: Vec<(String, String)>,
    turns: usize,
    /// Token ids of a prompt that grows.
    ids: Vec<u32>,
}

impl Talk {
    fn new(number: usize, systems: &[String]) -> Self {
        let system = systems[number % systems.len()].clone();
        Self { number, system, history: Vec::new(), turns: 0, ids: Vec::new() }
    }

    /// The next turn's request.
    fn ask(&mut self, model: &str, draw: &mut Draw) -> Ask {
        self.turns += 1;
        let length = 20 + draw.below(60);
        let question = draw.words(length);
        let mut ask = match self.number % 14 {
            0..=2 => self.chat(&question),
            3 | 4 => self.tools(&question),
            5 => self.parts(&question),
            6 | 7 => self.anthropic(&question),
            8 | 9 => self.responses(&question),
            10 => self.completion(&question, false),
            11 => self.completion(&question, true),
            12 => self.tokens(draw),
            _ => self.generate(draw),
        };
        self.history.push((question, draw.words(12)));
        ask.body["model"] = model.into();
        let tokens_max = json!(1 + draw.below(4));
        match ask.path {
            "/v1/responses" => ask.body["max_output_tokens"] = tokens_max,
            "/inference/v1/generate" => {
                ask.body["sampling_params"] = json!({"max_tokens": tokens_max});
            }
            _ => ask.body["max_tokens"] = tokens_max,
        }
        // Two talks in seven are salted, each for itself.
        if self.number % 7 == 1 {
            ask.body["cache_salt"] = format!("tenant {}", self.number).into();
        }
        if draw.below(3) == 0 && ask.path.contains("completions") {
            ask.body["stream"] = true.into();
            ask.body["stream_options"] = json!({"include_usage": true});
        } else if draw.below(6) == 0 {
            Self::score(&mut ask, draw);
        }
        ask
    }

    /// Asks for log-probabilities of the prompt too, for which the engine computes it anew.
    fn score(ask: &mut Ask, draw: &mut Draw) {
        match (ask.path, draw.below(2)) {
            ("/v1/completions", 0) => {
                ask.body["echo"] = true.into();
                ask.body["logprobs"] = json!(1);
            }
            ("/v1/chat/completions", 0) => ask.body["echo"] = true.into(),
            ("/v1/completions" | "/v1/chat/completions", _) => {
                ask.body["prompt_logprobs"] = json!(1);
            }
            ("/inference/v1/generate", _) => {
                ask.body["sampling_params"]["prompt_logprobs"] = json!(1)
            }
            _ => {}
        }
    }

    fn messages(&self, question: &str) -> Vec<Value> {
        let mut messages = vec![json!({"role": "system", "content": self.system})];
        for (question, answer) in &self.history {
            messages.push(json!({"role": "user", "content": question}));
            messages.push(json!({"role": "assistant", "content": answer}));
        }
        messages.push(json!({"role": "user", "content": question}));
        messages
    }

    fn chat(&self, question: &str) -> Ask {
        let mut body = json!({"messages": self.messages(question)});
        if self.number.is_multiple_of(2) {
            body["chat_template_kwargs"] = json!({"enable_thinking": self.turns.is_multiple_of(2)});
        }
        Ask { path: "/v1/chat/completions", body }
    }

    fn tools(&self, question: &str) -> Ask {
        let mut messages = self.messages(question);
        let calls: Vec<Value> = (0..self.number % 2 + 1)
            .map(|call| {
                json!({"id": format!("call_{call:05}"), "type": "function",
                    "function": {"name": "look_up", "arguments": format!("{{\"n\": {call}.0}}")}})
            })
            .collect();
        let results = calls
            .iter()
            .map(|call| json!({"role": "tool", "tool_call_id": call["id"], "content": "found: ü"}));
        let results: Vec<Value> = results.collect();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        messages.extend(results);
        let tool = json!({"type": "function", "function": {"name": "look_up",
            "description": "Looks it up.", "parameters": {"type": "object",
            "properties": {"n": {"type": "number", "default": 1.0}}, "required": ["n"]}}});
        Ask {
            path: "/v1/chat/completions",
            body: json!({"messages": messages, "tools": [tool], "tool_choice": "none"}),
        }
    }

    fn parts(&self, question: &str) -> Ask {
        let mut messages = self.messages("");
        let parts = json!([{"type": "text", "text": question}, {"type": "text", "text": "Well?"}]);
        if let Some(last) = messages.last_mut() {
            last["content"] = parts;
        }
        Ask { path: "/v1/chat/completions", body: json!({"messages": messages}) }
    }

    fn anthropic(&self, question: &str) -> Ask {
        let messages: Vec<Value> = self.messages(question).split_off(1);
        let system = json!([{"type": "text", "text": self.system}]);
        Ask { path: "/v1/messages", body: json!({"system": system, "messages": messages}) }
    }

    fn responses(&self, question: &str) -> Ask {
        let input = if self.history.is_empty() {
            question.into()
        } else {
            Value::Array(self.messages(question).split_off(1))
        };
        Ask { path: "/v1/responses", body: json!({"input": input, "instructions": self.system}) }
    }

    fn completion(&self, question: &str, is_list: bool) -> Ask {
        let mut text = self.system.clone();
        for (question, answer) in &self.history {
            text.push_str(&format!("\nQ: {question}\nA: {answer}"));
        }
        text.push_str(&format!("\nQ: {question}\nA:"));
        let prompt = if is_list { json!([text]) } else { text.into() };
        Ask { path: "/v1/completions", body: json!({"prompt": prompt}) }
    }

    /// A prompt of ids, longer at each turn.
    fn more_ids(&mut self, draw: &mut Draw) -> &[u32] {
        let more = 30 + draw.below(90);
        // Any ids but the special ones, which the families have elsewhere.
        self.ids.extend((0..more).map(|_| 1_000 + (draw.next() % 20_000) as u32));
        &self.ids
    }

    fn tokens(&mut self, draw: &mut Draw) -> Ask {
        let is_list = self.turns.is_multiple_of(2);
        let ids = self.more_ids(draw);
        let prompt = if is_list { json!([ids]) } else { json!(ids) };
        Ask { path: "/v1/completions", body: json!({"prompt": prompt}) }
    }

    fn generate(&mut self, draw: &mut Draw) -> Ask {
        let ids = self.more_ids(draw);
        Ask { path: "/inference/v1/generate", body: json!({"token_ids": ids}) }
    }
}
