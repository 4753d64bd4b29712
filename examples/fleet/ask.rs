//! Whether a Redis server will do.

use std::error::Error;
use std::sync::{Arc, mpsc};

use tollgate::global::{Authority, Batch, Call, RedisAuthority};

/// Asks the server at `url` whether it will do, so that what is wrong with it is told once.
pub(crate) fn ask(url: &str, prefix: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let authority = RedisAuthority::builder(url).key_prefix(prefix).build()?;
    let (tell, told) = mpsc::channel();
    let nothing = Batch { node: 0, shard: 0, number: 1, after: None, records: Vec::new() };
    // The call ends with an answer, or with the authority.
    authority.call(Call::new(Arc::new(nothing), move |reply| _ = tell.send(reply)));
    told.recv()??;
    Ok(())
}
