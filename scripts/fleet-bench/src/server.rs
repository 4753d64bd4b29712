//! The server under all of them: what it was asked for, and what it keeps.

use std::collections::HashMap;
use std::time::Instant;

use redis::Connection;

use crate::peers::Failure;

pub struct Server(Connection);

/// What the server had to do in a time.
pub struct Work {
    /// What clients called for: scripts, where there are any, and commands where there are none.
    pub calls: f64,
    /// All commands, those that scripts call included.
    pub commands: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    /// Of one core.
    pub cpu: f64,
}

pub struct Since {
    start: Instant,
    cpu: f64,
}

impl Server {
    pub fn new(url: &str) -> Result<Self, Failure> {
        Ok(Self(redis::Client::open(url)?.get_connection()?))
    }

    /// Forgets everything, for a run that begins.
    pub fn clear(&mut self) -> Result<(), Failure> {
        redis::cmd("FLUSHALL").exec(&mut self.0)?;
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut self.0)?;
        Ok(())
    }

    /// Counts from here.
    pub fn since(&mut self) -> Result<Since, Failure> {
        let cpu = cpu(&self.info("cpu")?);
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut self.0)?;
        Ok(Since { start: Instant::now(), cpu })
    }

    /// All of it by the second.
    pub fn work(&mut self, since: &Since) -> Result<Work, Failure> {
        let seconds = since.start.elapsed().as_secs_f64();
        let info = self.info("everything")?;
        let (mut scripts, mut commands) = (0.0, 0.0);
        for (name, value) in &info {
            let Some(command) = name.strip_prefix("cmdstat_") else { continue };
            // What this asks for is not theirs.
            if matches!(command, "info" | "config|resetstat") {
                continue;
            }
            let calls = value.split(',').find_map(|part| part.strip_prefix("calls="));
            let calls: f64 = calls.and_then(|calls| calls.parse().ok()).unwrap_or(0.0);
            commands += calls;
            if matches!(command, "evalsha" | "eval") {
                scripts += calls;
            }
        }
        let number = |name: &str| info.get(name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
        Ok(Work {
            calls: if scripts > 0.0 { scripts } else { commands } / seconds,
            commands: commands / seconds,
            bytes_in: number("total_net_input_bytes") / seconds,
            bytes_out: number("total_net_output_bytes") / seconds,
            cpu: (cpu(&info) - since.cpu) / seconds,
        })
    }

    /// How many keys there are, and the bytes that they take.
    pub fn kept(&mut self) -> Result<(usize, u64), Failure> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.0)?;
        let mut bytes = 0;
        for keys in keys.chunks(1_000) {
            let mut pipe = redis::pipe();
            for key in keys {
                pipe.cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0);
            }
            bytes += pipe.query::<Vec<Option<u64>>>(&mut self.0)?.into_iter().flatten().sum::<u64>();
        }
        Ok((keys.len(), bytes))
    }

    fn info(&mut self, section: &str) -> Result<HashMap<String, String>, Failure> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.0)?;
        let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(text.lines().filter_map(pair).collect())
    }
}

/// Seconds of all its threads.
fn cpu(info: &HashMap<String, String>) -> f64 {
    let seconds = |name: &str| info.get(name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
    seconds("used_cpu_user") + seconds("used_cpu_sys")
}
