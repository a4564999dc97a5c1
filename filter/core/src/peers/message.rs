//! One VM's message to the peers of its Envoy, as bytes.
//!
//! ```text
//! version u8, envoy u64, vm u64, sequence u64,
//! backends u16, for each: id u32, running u32, prefilling u32, pending prefill u32, context u32,
//! events until the end, each: kind u8, length u32, and so many bytes
//! ```
//!
//! Little-endian. Kinds that are not known are passed over, and so is what an event has beyond the fields
//! known here, so that Envoys of two versions can talk while one replaces the other.

use crate::ids::{BackendId, BlockHash};
use crate::limits::{BACKENDS_MAX, NAME_BYTES_MAX, PEER_BLOCKS_MAX, PEER_EVENTS_MAX};
use crate::load::BackendLoad;
use crate::wire::{Reader, Writer};

const KIND_SENT: u8 = 1;
const KIND_DECODED: u8 = 2;
const KIND_SERVES: u8 = 3;

/// Bytes of an event before its own fields.
const EVENT_HEAD_BYTES: usize = 5;

/// What one VM tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Its Envoy.
    pub envoy: u64,
    /// The VM.
    pub vm: u64,
    /// The number of the message, from 1.
    pub sequence: u64,
    /// The load that the VM's own requests are, at each backend that has any.
    pub loads: Vec<(BackendId, BackendLoad)>,
    /// What happened since its last message.
    pub events: Vec<Event>,
}

/// A prompt that was sent, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct SentTo<'a> {
    /// Where to.
    pub backend: BackendId,
    /// Hash of the name of its model, by [`name_hash`].
    pub model: u64,
    /// Tokens in a block.
    pub block_size_tokens: u32,
    /// Length in tokens.
    pub prompt_tokens: u32,
    /// Hashes of its full blocks.
    pub hashes: &'a [BlockHash],
}

/// Something that other Envoys cannot see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A prompt was sent.
    Sent {
        /// Where to.
        backend: BackendId,
        /// Hash of the name of its model.
        model: u64,
        /// Tokens in a block.
        block_size_tokens: u32,
        /// Length in tokens.
        prompt_tokens: u32,
        /// Hashes of its full blocks.
        hashes: Vec<BlockHash>,
    },
    /// Output filled blocks.
    Decoded {
        /// Where.
        backend: BackendId,
        /// How many.
        blocks: u32,
    },
    /// A host that nobody listed serves, where backends are observed.
    Serves {
        /// Hash of the name of the configuration, by [`name_hash`].
        config: u64,
        /// The host, as `ip:port`.
        address: String,
    },
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Another version of the format.
    #[error("the message is of another version")]
    Version,
    /// It ends too early, or counts more than there may be.
    #[error("the message is cut off or out of bounds")]
    Malformed,
}

/// By what a model or a configuration is known to peers.
#[must_use]
pub fn name_hash(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

impl Event {
    /// The event of a prompt that was sent.
    #[must_use]
    pub fn sent(sent: SentTo<'_>) -> Self {
        let SentTo { backend, model, block_size_tokens, prompt_tokens, hashes } = sent;
        let hashes = hashes.to_vec();
        Self::Sent { backend, model, block_size_tokens, prompt_tokens, hashes }
    }

    /// Its length in a message.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        EVENT_HEAD_BYTES + self.field_bytes()
    }

    fn field_bytes(&self) -> usize {
        match self {
            Self::Sent { hashes, .. } => 20 + 8 * hashes.len(),
            Self::Decoded { .. } => 8,
            Self::Serves { address, .. } => 8 + address.len(),
        }
    }

    fn encode(&self, writer: &mut Writer) {
        let kind = match self {
            Self::Sent { .. } => KIND_SENT,
            Self::Decoded { .. } => KIND_DECODED,
            Self::Serves { .. } => KIND_SERVES,
        };
        writer.u8(kind);
        writer.u32(u32::try_from(self.field_bytes()).unwrap_or(u32::MAX));
        match self {
            Self::Sent { backend, model, block_size_tokens, prompt_tokens, hashes } => {
                writer.u32(backend.0);
                writer.u64(*model);
                writer.u32(*block_size_tokens);
                writer.u32(*prompt_tokens);
                hashes.iter().for_each(|hash| writer.u64(hash.0));
            }
            Self::Decoded { backend, blocks } => {
                writer.u32(backend.0);
                writer.u32(*blocks);
            }
            Self::Serves { config, address } => {
                writer.u64(*config);
                writer.bytes(address.as_bytes());
            }
        }
    }

    /// The event in `fields`; `None` when it is cut off, or of a kind that is not known.
    fn decode(kind: u8, mut fields: Reader<'_>) -> Option<Self> {
        let backend = |fields: &mut Reader<'_>| fields.u32().map(BackendId);
        match kind {
            KIND_SENT => Some(Self::Sent {
                backend: backend(&mut fields)?,
                model: fields.u64()?,
                block_size_tokens: fields.u32()?,
                prompt_tokens: fields.u32()?,
                hashes: hashes(&mut fields),
            }),
            KIND_DECODED => {
                Some(Self::Decoded { backend: backend(&mut fields)?, blocks: fields.u32()? })
            }
            KIND_SERVES => {
                let config = fields.u64()?;
                let address = String::from_utf8(fields.rest().to_vec()).ok()?;
                (address.len() <= NAME_BYTES_MAX).then_some(Self::Serves { config, address })
            }
            _ => None,
        }
    }
}

fn hashes(fields: &mut Reader<'_>) -> Vec<BlockHash> {
    std::iter::from_fn(|| fields.u64().map(BlockHash)).take(PEER_BLOCKS_MAX).collect()
}

impl Message {
    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let events: usize = self.events.iter().map(Event::encoded_bytes).sum();
        let mut writer = Writer::versioned(27 + 20 * self.loads.len() + events);
        writer.u64(self.envoy);
        writer.u64(self.vm);
        writer.u64(self.sequence);
        encode_loads(&mut writer, &self.loads);
        self.events.iter().for_each(|event| event.encode(&mut writer));
        writer.finish()
    }

    /// Reads one; the second value is how many of its events are of no known kind.
    ///
    /// # Errors
    /// [`MessageError`] when nothing of it can be believed.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64), MessageError> {
        let mut reader = Reader::versioned(bytes).ok_or(MessageError::Version)?;
        let head = |reader: &mut Reader<'_>| {
            let (envoy, vm, sequence) = (reader.u64()?, reader.u64()?, reader.u64()?);
            Some(Self { envoy, vm, sequence, loads: decode_loads(reader)?, events: Vec::new() })
        };
        let mut message = head(&mut reader).ok_or(MessageError::Malformed)?;
        let mut unknown = 0;
        while let Some(kind) = reader.u8() {
            if message.events.len() as u64 + unknown >= PEER_EVENTS_MAX as u64 {
                return Err(MessageError::Malformed);
            }
            let length = reader.u32().ok_or(MessageError::Malformed)?;
            let fields = reader.bytes(length as usize).ok_or(MessageError::Malformed)?;
            match Event::decode(kind, Reader::within(fields)) {
                Some(event) => message.events.push(event),
                None => unknown += 1,
            }
        }
        Ok((message, unknown))
    }
}

/// Writes loads by backend, at most [`BACKENDS_MAX`].
pub(crate) fn encode_loads(writer: &mut Writer, loads: &[(BackendId, BackendLoad)]) {
    let loads = loads.get(..BACKENDS_MAX).unwrap_or(loads);
    writer.u16(loads.len() as u16);
    for (backend, load) in loads {
        writer.u32(backend.0);
        writer.u32(load.running);
        writer.u32(load.prefilling);
        writer.u32(load.pending_prefill_tokens);
        writer.u32(load.context_tokens);
    }
}

/// Reads them; `None` when they are cut off or too many.
pub(crate) fn decode_loads(reader: &mut Reader<'_>) -> Option<Vec<(BackendId, BackendLoad)>> {
    let count = usize::from(reader.u16()?);
    if count > BACKENDS_MAX {
        return None;
    }
    let load = |reader: &mut Reader<'_>| {
        let backend = BackendId(reader.u32()?);
        let load = BackendLoad {
            running: reader.u32()?,
            prefilling: reader.u32()?,
            pending_prefill_tokens: reader.u32()?,
            context_tokens: reader.u32()?,
        };
        Some((backend, load))
    };
    (0..count).map(|_| load(reader)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let backend = BackendId(7);
        let load = BackendLoad {
            running: 3,
            prefilling: 1,
            pending_prefill_tokens: 900,
            context_tokens: 4_000,
        };
        let hashes = vec![BlockHash(1), BlockHash(u64::MAX)];
        Message {
            envoy: 1,
            vm: 2,
            sequence: 3,
            loads: vec![(backend, load), (BackendId(8), load)],
            events: vec![
                Event::Sent {
                    backend,
                    model: name_hash("m"),
                    block_size_tokens: 16,
                    prompt_tokens: 40,
                    hashes,
                },
                Event::Decoded { backend, blocks: 5 },
                Event::Serves { config: 6, address: "10.0.0.1:8000".to_owned() },
            ],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let message = message();
        assert_eq!(Message::decode(&message.encode()), Ok((message, 0)));
    }

    #[test]
    fn other_versions_and_cut_off_messages_are_refused() {
        let bytes = message().encode();
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert_eq!(Message::decode(&other), Err(MessageError::Version));
        assert_eq!(Message::decode(&[]), Err(MessageError::Version));
        let events = message().events;
        let lengths = events.iter().rev().scan(bytes.len(), |end, event| {
            *end -= event.encoded_bytes();
            Some(*end)
        });
        let whole: Vec<usize> = lengths.chain([bytes.len()]).collect();
        for end in 1..bytes.len() {
            let read = Message::decode(&bytes[..end]);
            assert_eq!(read.is_ok(), whole.contains(&end), "{end} of {}", bytes.len());
        }
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let mut bytes = message().encode();
        bytes.extend([200, 3, 0, 0, 0, 1, 2, 3]);
        // A known kind, with a field more.
        bytes.extend([KIND_DECODED, 9, 0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 77]);
        let (read, unknown) = Message::decode(&bytes).unwrap();
        assert_eq!((read.events.len(), unknown), (4, 1));
        assert_eq!(read.events[3], Event::Decoded { backend: BackendId(7), blocks: 6 });
    }
}
