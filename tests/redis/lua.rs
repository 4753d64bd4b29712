//! The script without a server: in a Lua interpreter of its own, over as much of a server as it needs, in virtual time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Error, Function, Lua, MultiValue, Value, Variadic};
use tollgate::global::{Batch, Reply};
use tollgate::internal::{Packed, SCRIPT, unpack};

use crate::conformance::Subject;

/// What is under a key.
#[derive(Clone, Debug)]
enum Held {
    Bytes(Vec<u8>),
    Scores(HashMap<Vec<u8>, f64>),
}

#[derive(Clone, Debug)]
struct Entry {
    held: Held,
    /// Milliseconds by the clock, `None` for never.
    until: Option<u64>,
}

/// As much of a server as the script needs.
#[derive(Default, Debug)]
pub(crate) struct Store {
    /// Microseconds.
    pub(crate) clock: u64,
    entries: HashMap<Vec<u8>, Entry>,
    /// How many writes were tried.
    pub(crate) writes: usize,
    /// The error that every write is answered by.
    pub(crate) refuses: Option<&'static str>,
}

type Outcome<T> = Result<T, &'static str>;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Store {
    fn expire(&mut self) {
        let now = self.clock / 1_000;
        self.entries.retain(|_, entry| entry.until.is_none_or(|until| now < until));
    }

    /// Writes bytes under a key, for an hour.
    pub(crate) fn put(&mut self, key: &[u8], bytes: &[u8]) {
        let until = Some(self.clock / 1_000 + 3_600_000);
        self.entries.insert(key.to_vec(), Entry { held: Held::Bytes(bytes.to_vec()), until });
    }

    /// The keys, and for how many milliseconds each lives on.
    pub(crate) fn lives(&self) -> Vec<(Vec<u8>, Option<u64>)> {
        let now = self.clock / 1_000;
        self.entries
            .iter()
            .map(|(key, entry)| (key.clone(), entry.until.map(|until| until.saturating_sub(now))))
            .collect()
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    fn bytes(&self, key: &[u8]) -> Outcome<Option<&[u8]>> {
        match self.entries.get(key).map(|entry| &entry.held) {
            None => Ok(None),
            Some(Held::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Held::Scores(_)) => Err(WRONG_TYPE),
        }
    }

    fn scores(&mut self, key: &[u8]) -> Outcome<&mut HashMap<Vec<u8>, f64>> {
        let entry = || Entry { held: Held::Scores(HashMap::new()), until: None };
        match &mut self.entries.entry(key.to_vec()).or_insert_with(entry).held {
            Held::Scores(scores) => Ok(scores),
            Held::Bytes(_) => Err(WRONG_TYPE),
        }
    }

    fn until(&self, millis: &[u8]) -> Outcome<Option<u64>> {
        let millis: u64 = number(millis)?;
        if millis == 0 {
            Err("ERR invalid expire time in 'set' command")
        } else {
            Ok(Some(self.clock / 1_000 + millis))
        }
    }

    fn write(&mut self) -> Outcome<()> {
        self.writes += 1;
        self.refuses.map_or(Ok(()), Err)
    }

    fn run(&mut self, command: &[Vec<u8>]) -> Outcome<Answered> {
        let command: Vec<_> = command.iter().map(Vec::as_slice).collect();
        match command.as_slice() {
            [b"TIME"] => Ok(Answered::Time(self.clock / 1_000_000, self.clock % 1_000_000)),
            [b"GET", key] => Ok(self.bytes(key)?.map_or(Answered::Nothing, |bytes| Answered::Bytes(bytes.to_vec()))),
            [b"MGET", keys @ ..] => {
                let bytes = keys.iter().map(|key| self.bytes(key).ok().flatten().map(<[u8]>::to_vec));
                Ok(Answered::Several(bytes.collect()))
            }
            [b"SET", key, value, b"PX", millis] => {
                self.write()?;
                let entry = Entry { held: Held::Bytes(value.to_vec()), until: self.until(millis)? };
                self.entries.insert(key.to_vec(), entry);
                Ok(Answered::Fine)
            }
            [b"SETRANGE", key, offset, value] => {
                self.write()?;
                let offset = number::<usize>(offset)?;
                match self.entries.get_mut(*key).map(|entry| &mut entry.held) {
                    Some(Held::Bytes(bytes)) => bytes[offset..offset + value.len()].copy_from_slice(value),
                    held => panic!("a range of {held:?}"),
                }
                Ok(Answered::Fine)
            }
            [b"PEXPIRE", key, millis] => {
                self.write()?;
                let until = self.until(millis)?;
                if let Some(entry) = self.entries.get_mut(*key) {
                    entry.until = until;
                }
                Ok(Answered::Fine)
            }
            [b"DEL", key] => {
                self.write()?;
                self.entries.remove(*key);
                Ok(Answered::Fine)
            }
            [b"ZADD", key, score, member] => {
                self.write()?;
                let score = number(score)?;
                self.scores(key)?.insert(member.to_vec(), score);
                Ok(Answered::Fine)
            }
            [b"ZREMRANGEBYSCORE", key, b"-inf", most] => {
                self.write()?;
                let most: f64 = number(most)?;
                self.scores(key)?.retain(|_, score| *score > most);
                Ok(Answered::Fine)
            }
            [b"ZCARD", key] => Ok(Answered::Number(self.scores(key)?.len())),
            _ => panic!("a command that the script is not known to use: {:?}", command[0].escape_ascii().to_string()),
        }
    }
}

fn number<T: std::str::FromStr>(bytes: &[u8]) -> Outcome<T> {
    let text = std::str::from_utf8(bytes).map_err(|_| "ERR value is not an integer or out of range")?;
    text.parse().map_err(|_| "ERR value is not an integer or out of range")
}

enum Answered {
    Nothing,
    Fine,
    Number(usize),
    Bytes(Vec<u8>),
    Several(Vec<Option<Vec<u8>>>),
    Time(u64, u64),
}

/// The script, and the store that it works on.
struct Interpreter {
    lua: Lua,
    script: Function,
    store: Rc<RefCell<Store>>,
}

thread_local! {
    /// Compiled once for each thread.
    static INTERPRETER: Rc<Interpreter> = Rc::new(Interpreter::new());
}

impl Interpreter {
    fn new() -> Self {
        let lua = Lua::new();
        let store = Rc::new(RefCell::new(Store::default()));
        let redis = lua.create_table().unwrap();
        for (name, throws) in [("call", true), ("pcall", false)] {
            let store = Rc::clone(&store);
            let call = lua.create_function(move |lua, words: Variadic<Value>| run(lua, &store, &words, throws));
            redis.set(name, call.unwrap()).unwrap();
        }
        let packing = lua.create_table().unwrap();
        packing.set("pack", lua.create_function(pack).unwrap()).unwrap();
        packing.set("unpack", lua.create_function(take_apart).unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        lua.globals().set("struct", packing).unwrap();
        let script = lua.load(SCRIPT).set_name("window.lua").into_function().unwrap();
        Self { lua, script, store }
    }

    /// The bytes of the reply, or an error of the server.
    fn eval(&self, packed: &Packed) -> Result<Vec<u8>, String> {
        let strings = |all: &[Vec<u8>]| {
            let table = all.iter().map(|bytes| self.lua.create_string(bytes).unwrap());
            self.lua.create_sequence_from(table).unwrap()
        };
        self.lua.globals().set("KEYS", strings(&packed.keys)).unwrap();
        self.lua.globals().set("ARGV", strings(std::slice::from_ref(&packed.argument))).unwrap();
        match self.script.call(()) {
            Ok(Value::String(bytes)) => Ok(bytes.as_bytes().to_vec()),
            Ok(Value::Table(error)) => Err(error.get("err").unwrap()),
            Ok(other) => panic!("the script returned {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn run(lua: &Lua, store: &RefCell<Store>, words: &[Value], throws: bool) -> mlua::Result<Value> {
    let bytes = |word: &Value| match word {
        Value::String(bytes) => bytes.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => format!("{number}").into_bytes(),
        other => panic!("{other:?} as a word of a command"),
    };
    let command: Vec<_> = words.iter().map(bytes).collect();
    let number = |number: u64| lua.create_string(number.to_string()).map(Value::String);
    Ok(match store.borrow_mut().run(&command) {
        Ok(Answered::Nothing) => Value::Boolean(false),
        Ok(Answered::Fine) => Value::Boolean(true),
        Ok(Answered::Number(number)) => Value::Number(number as f64),
        Ok(Answered::Bytes(bytes)) => Value::String(lua.create_string(bytes)?),
        Ok(Answered::Several(all)) => {
            let value = |bytes: Option<Vec<u8>>| match bytes {
                Some(bytes) => lua.create_string(bytes).map(Value::String),
                None => Ok(Value::Boolean(false)),
            };
            let values = all.into_iter().map(value).collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(values)?)
        }
        Ok(Answered::Time(seconds, micros)) => {
            Value::Table(lua.create_sequence_from([number(seconds)?, number(micros)?])?)
        }
        Err(error) if throws => return Err(Error::runtime(error)),
        Err(error) => {
            let table = lua.create_table()?;
            table.set("err", error)?;
            Value::Table(table)
        }
    })
}

/// The sizes of a format of little-endian unsigned numbers, `None` for a double: all that the script uses.
fn sizes(form: &[u8]) -> Vec<Option<usize>> {
    let (first, mut rest) = form.split_first().expect("a format");
    assert_eq!(*first, b'<', "the order of bytes is said");
    let mut sizes = Vec::new();
    while !rest.is_empty() {
        let (size, length) = match rest {
            [b'I', digit @ b'1'..=b'8', ..] => (Some(usize::from(digit - b'0')), 2),
            [b'B', ..] => (Some(1), 1),
            [b'H', ..] => (Some(2), 1),
            [b'I', ..] => (Some(4), 1),
            [b'd', ..] => (None, 1),
            _ => panic!("a format that the script is not known to use: {}", form.escape_ascii()),
        };
        sizes.push(size);
        rest = &rest[length..];
    }
    sizes
}

fn pack(lua: &Lua, (form, numbers): (mlua::String, Variadic<f64>)) -> mlua::Result<mlua::String> {
    let mut packed = Vec::new();
    let mut numbers = numbers.iter();
    for size in sizes(&form.as_bytes()) {
        let number = *numbers.next().ok_or_else(|| Error::runtime("too few numbers to pack"))?;
        let Some(size) = size else {
            packed.extend(number.to_le_bytes());
            continue;
        };
        let most = 2_f64.powi(8 * size as i32);
        assert!(number >= 0.0 && number < most && number.fract() == 0.0, "{number} does not fit {size} bytes");
        packed.extend(&(number as u64).to_le_bytes()[..size]);
    }
    assert!(numbers.next().is_none(), "more numbers than the format has");
    lua.create_string(packed)
}

fn take_apart(_: &Lua, (form, bytes, at): (mlua::String, mlua::String, Option<usize>)) -> mlua::Result<MultiValue> {
    let (bytes, mut at) = (bytes.as_bytes(), at.unwrap_or(1) - 1);
    let mut numbers = MultiValue::new();
    for size in sizes(&form.as_bytes()) {
        let part = bytes.get(at..at + size.unwrap_or(8)).ok_or_else(|| Error::runtime("data string too short"))?;
        let bits = part.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        numbers.push_back(Value::Number(if size.is_some() { bits as f64 } else { f64::from_bits(bits) }));
        at += part.len();
    }
    numbers.push_back(Value::Number((at + 1) as f64));
    Ok(numbers)
}

/// The script on an empty store.
pub(crate) struct Scripted {
    interpreter: Rc<Interpreter>,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        let interpreter = INTERPRETER.with(Rc::clone);
        *interpreter.store.borrow_mut() = Store::default();
        Self { interpreter }
    }

    pub(crate) fn store(&self) -> std::cell::RefMut<'_, Store> {
        self.interpreter.store.borrow_mut()
    }

    /// The reply, or the error of the server. Every key has a time to live afterwards.
    pub(crate) fn try_apply(&mut self, batch: &Batch) -> Result<Reply, String> {
        let packed = Packed::new(batch, "{0}").unwrap();
        let reply = self.interpreter.eval(&packed)?;
        for (key, life) in self.store().lives() {
            let own = packed.keys.contains(&key);
            assert!(!own || life.is_some_and(|life| life > 0), "{} lives {life:?}", key.escape_ascii());
        }
        Ok(unpack(&reply, batch).unwrap_or_else(|| panic!("{}", reply.escape_ascii())))
    }
}

impl Subject for Scripted {
    fn at(&mut self, time: u64) {
        // The script counts in doubles. So much is the year 2112.
        let mut store = self.store();
        store.clock = time.min(1 << 52);
        store.expire();
    }

    fn apply(&mut self, batch: &Batch) -> Reply {
        self.try_apply(batch).unwrap()
    }
}
