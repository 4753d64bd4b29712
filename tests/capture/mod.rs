//! Events of the library, as a subscriber of this program sees them, by the node that tells them.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static SEEN: Mutex<Option<HashMap<u64, Vec<String>>>> = Mutex::new(None);

/// From now on events are kept.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| tracing::subscriber::set_global_default(Keeper).expect("there is no other"));
}

/// What that node has told so far, each as its level, message and fields.
pub(crate) fn told(node: u64) -> Vec<String> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.as_ref().and_then(|seen| seen.get(&node)).cloned().unwrap_or_default()
}

struct Keeper;

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tollgate"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = format!("{} {}{}", event.metadata().level(), fields.message, fields.others);
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get_or_insert_default().entry(fields.node).or_default().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields {
    node: u64,
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "node" {
            self.node = value;
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            _ = write!(self.others, " {}={value:?}", field.name());
        }
    }
}
