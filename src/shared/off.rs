//! Without the feature `global`: nothing, in the same words.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{Refused, Who};
use crate::decision::Source;
use crate::error::BuildError;
use crate::quota::QuotaTicks;
use crate::several::{AllTaken, Ask};
use crate::store::Taken;
use crate::ticks::Now;
use crate::unit::Unit;

/// There is none.
pub(crate) type GlobalQuota = Infallible;

pub(crate) type Fleet = Option<Infallible>;

pub(crate) type Write<K> = PhantomData<fn(&K)>;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Shared;

#[derive(Debug)]
pub(crate) struct Ledgers(Infallible);

impl Shared {
    pub(crate) const fn compile(_: &str, _: &[Infallible], _: &Fleet) -> Result<Self, BuildError> {
        Ok(Self)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (&Arc<str>, Unit, &QuotaTicks)> {
        std::iter::empty()
    }

    pub(crate) fn open<K: ?Sized>(&self, _: &str, _: Who<'_, K>) -> Option<Ledgers> {
        None
    }

    pub(crate) fn carry<K: ?Sized>(&self, _: &str, _: Option<&Ledgers>, _: Who<'_, K>) -> Option<Ledgers> {
        None
    }

    pub(crate) const fn exceeded(&self, _: Ask<'_>, _: usize, _: &mut AllTaken) -> Option<usize> {
        None
    }

    pub(crate) const fn asks_nothing(&self, _: Ask<'_>) -> bool {
        true
    }

    pub(crate) const fn spend(
        &self,
        ledgers: &Ledgers,
        _: Ask<'_>,
        _: Now,
        _: usize,
        _: &mut AllTaken,
    ) -> Result<Source, Refused> {
        match ledgers.0 {}
    }

    pub(crate) const fn look(
        &self,
        ledgers: &Ledgers,
        _: Ask<'_>,
        _: Now,
        _: usize,
        _: &mut AllTaken,
    ) -> Result<Source, Refused> {
        match ledgers.0 {}
    }

    pub(crate) const fn spend_lease(&self, ledgers: &Ledgers, _: u64, _: Now) -> Option<((QuotaTicks, Taken), Source)> {
        match ledgers.0 {}
    }

    pub(crate) const fn unspend(&self, ledgers: &Ledgers, _: usize, _: &[Taken]) {
        match ledgers.0 {}
    }
}

impl Ledgers {
    pub(crate) const fn are_idle(&self, _: Now) -> bool {
        match self.0 {}
    }
}
