//! All plans and how a key gets one, as the user describes them, and their compilation.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::BuildError;
use crate::hasher::RandomState;
use crate::key::Key;
use crate::plans::{Granted, Home, MAX_QUOTAS, PlanTicks, Plans, Simple, places};
use crate::quota::{Quota, QuotaTicks};
use crate::shared::{Fleet, GlobalQuota, Shared};
use crate::ticks::Now;
use crate::unit::Unit;

/// A set of quotas: all of them hold for each key on the plan.
///
/// ```
/// use tollgate::{Plan, Quota, Unit};
///
/// let chat = Plan::new([
///     Quota::per_second(5),
///     Quota::per_day(10_000),
///     Quota::per_minute(90_000).unit(Unit::TOKENS),
/// ])
/// .in_flight(4);
/// # _ = chat;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    quotas: Vec<Quota>,
    global: Vec<GlobalQuota>,
    in_flight: Option<u32>,
    unlimited: bool,
    shadow: bool,
}

impl Plan {
    /// A plan of `quotas`, at most eight. Two that have unit and period in common need [names](Quota::named).
    pub fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        let quotas = quotas.into_iter().collect();
        Self { quotas, global: Vec::new(), in_flight: None, unlimited: false, shadow: false }
    }

    /// A plan that limits nothing. No state is kept of its keys.
    pub const fn unlimited() -> Self {
        Self { quotas: Vec::new(), global: Vec::new(), in_flight: None, unlimited: true, shadow: false }
    }

    /// The same plan with `quota` in addition, which all nodes of a fleet share: the limiter has to
    /// [belong](crate::Builder::fleet) to one. Both together are at most eight.
    ///
    /// The quotas of this node are asked first, and shape bursts; all of them, and the fleet's, have to allow a request.
    #[cfg(feature = "global")]
    #[must_use]
    pub fn global(mut self, quota: GlobalQuota) -> Self {
        self.global.push(quota);
        self
    }

    /// The same plan with at most `limit` requests of a key in flight at once. It holds for requests that
    /// [enter](crate::Limiter::enter).
    #[must_use]
    pub fn in_flight(self, limit: u32) -> Self {
        Self { in_flight: Some(limit), ..self }
    }

    /// The same plan in shadow mode: it decides and counts, and never denies. Each answer says what it
    /// [would have been](crate::Allow::would_deny), and [`plan_stats`](crate::Limiter::plan_stats) how many.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }
}

impl<const N: usize> From<[Quota; N]> for Plan {
    fn from(quotas: [Quota; N]) -> Self {
        Self::new(quotas)
    }
}

impl From<Vec<Quota>> for Plan {
    fn from(quotas: Vec<Quota>) -> Self {
        Self::new(quotas)
    }
}

impl From<Quota> for Plan {
    fn from(quota: Quota) -> Self {
        Self::new([quota])
    }
}

/// Tells the plan of a key.
type Resolver<K> = dyn Fn(&K, &PlanNames<'_>) -> Option<PlanId> + Send + Sync;

/// All plans and how a key gets one. It is swapped whole by [`reload`](crate::Limiter::reload).
///
/// The plan of a key is, in this order: what [`override_key`](Policy::override_key) says of that key; the plan that the
/// caller names, with [`Limiter::plan`](crate::Limiter::plan); what the [`resolver`](Policy::resolver) says; the default.
///
/// ```
/// use tollgate::{Limiter, Plan, Policy, Quota};
///
/// let policy = Policy::new()
///     .plan("free", [Quota::per_minute(10)])
///     .plan("pro", [Quota::per_second(20).burst(60), Quota::per_day(100_000)])
///     .plan("internal", Plan::unlimited())
///     .default_plan("free")
///     .override_key("health-checker", "internal");
/// let limiter = Limiter::builder().policy(policy).build()?;
/// assert_eq!(limiter.check("alice").limit(), 10);
/// assert_eq!(limiter.plan("pro")?.check("bob").limit(), 60);
/// assert_eq!(limiter.check("health-checker").limit(), u64::MAX);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a policy does nothing until a limiter has it"]
pub struct Policy<K: Key + ?Sized = str> {
    plans: Vec<(String, Plan)>,
    default: Option<String>,
    overrides: Vec<(K::Owned, String)>,
    resolver: Option<Arc<Resolver<K>>>,
    unknown_is_default: bool,
    shadow: bool,
}

impl<K: Key + ?Sized> Policy<K> {
    /// A policy without plans, which no limiter takes.
    pub const fn new() -> Self {
        Self {
            plans: Vec::new(),
            default: None,
            overrides: Vec::new(),
            resolver: None,
            unknown_is_default: false,
            shadow: false,
        }
    }

    /// The same plans for keys of another type; what was said of single keys goes.
    pub(crate) fn of_keys<T: Key + ?Sized>(self) -> Policy<T> {
        let Self { plans, default, unknown_is_default, shadow, .. } = self;
        Policy { plans, default, overrides: Vec::new(), resolver: None, unknown_is_default, shadow }
    }

    /// Returns how many overrides there are, and whether there is a resolver: the parts that speak of single keys.
    pub(crate) const fn of_single_keys(&self) -> (usize, bool) {
        (self.overrides.len(), self.resolver.is_some())
    }

    /// What is legal and may not be meant.
    #[cfg(feature = "global")]
    pub fn warnings(&self) -> Vec<crate::global::Warning> {
        let of_plan = |(name, plan): &(String, Plan)| {
            plan.global.iter().filter_map(|quota| quota.warning(name)).collect::<Vec<_>>()
        };
        self.plans.iter().flat_map(of_plan).collect()
    }

    /// Adds the plan `name`.
    pub fn plan(mut self, name: impl Into<String>, plan: impl Into<Plan>) -> Self {
        self.plans.push((name.into(), plan.into()));
        self
    }

    /// The plan of a key that gets none otherwise. It need not be said where there is one plan only.
    pub fn default_plan(self, name: impl Into<String>) -> Self {
        Self { default: Some(name.into()), ..self }
    }

    /// Puts the one key `key` on the plan `plan`, whatever else says otherwise.
    pub fn override_key(mut self, key: impl Into<K::Owned>, plan: impl Into<String>) -> Self {
        self.overrides.push((key.into(), plan.into()));
        self
    }

    /// Has `resolver` tell the plan of each key; for `None` it is the default.
    ///
    /// It is called once in each check that names no plan, so what it does costs every request: a look into a map that is swapped
    /// whole, as with `arc-swap`, is fine, a lock that is held for long is not. Plan names can be looked up in what it is
    /// given; ids can be kept, since a plan that keeps its name keeps its id.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// let policy = Policy::new()
    ///     .plan("free", [Quota::per_minute(10)])
    ///     .plan("pro", [Quota::per_second(20)])
    ///     .default_plan("free")
    ///     .resolver(|key: &str, plans| if key.starts_with("pk-") { plans.id("pro") } else { None });
    /// let limiter = Limiter::builder().policy(policy).build()?;
    /// assert_eq!(limiter.check("pk-alice").limit(), 20);
    /// assert_eq!(limiter.check("bob").limit(), 10);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn resolver(self, resolver: impl Fn(&K, &PlanNames<'_>) -> Option<PlanId> + Send + Sync + 'static) -> Self {
        Self { resolver: Some(Arc::new(resolver)), ..self }
    }

    /// Lets an unknown plan stand for the default, in overrides and in [`Limiter::plan`](crate::Limiter::plan), instead
    /// of being an error.
    pub fn unknown_plan_is_default(self) -> Self {
        Self { unknown_is_default: true, ..self }
    }

    /// Puts all plans in [shadow mode](Plan::shadow). Nothing is limited then: to try a policy beside one that stays in
    /// force, give it a limiter of its own.
    pub fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }
}

impl<K: Key + ?Sized> Default for Policy<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized> Clone for Policy<K>
where
    K::Owned: Clone,
{
    fn clone(&self) -> Self {
        let Self { plans, default, overrides, resolver, unknown_is_default, shadow } = self;
        Self {
            plans: plans.clone(),
            default: default.clone(),
            overrides: overrides.clone(),
            resolver: resolver.clone(),
            unknown_is_default: *unknown_is_default,
            shadow: *shadow,
        }
    }
}

impl<K: Key + ?Sized> fmt::Debug for Policy<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("plans", &self.plans)
            .field("default", &self.default)
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}

/// Which plan of a limiter, without its name. A plan keeps its id for as long as each policy has one of its name, and no
/// other plan of the limiter ever gets it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlanId(pub(crate) u16);

/// The names of the plans of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PlanNames<'a> {
    names: &'a HashMap<Arc<str>, u16, RandomState>,
}

impl PlanNames<'_> {
    /// The id of the plan called `name`.
    pub fn id(&self, name: &str) -> Option<PlanId> {
        self.names.get(name).copied().map(PlanId)
    }
}

/// A policy as decisions use it.
pub(crate) struct Compiled<K: Key + ?Sized> {
    pub(crate) plans: Plans,
    /// Whether each key is on the default plan unless the caller names another. Nothing in here is the user's then.
    pub(crate) plain: bool,
    /// That, if it is so and it is simple.
    pub(crate) simple: Option<Simple>,
    overrides: Arc<HashMap<K::Owned, u16, RandomState>>,
    resolver: Option<Arc<Resolver<K>>>,
    names: Arc<HashMap<Arc<str>, u16, RandomState>>,
    unknown_is_default: bool,
}

impl<K: Key + ?Sized> Compiled<K> {
    /// Compiles the first policy of a limiter, or the one that comes after `before` at the instant `at`.
    pub(crate) fn new(policy: Policy<K>, before: Option<&Self>, at: Now, fleet: &Fleet) -> Result<Self, BuildError> {
        let Policy { plans: described, default, overrides, resolver, unknown_is_default, shadow } = policy;
        if described.is_empty() {
            return Err(BuildError::NoQuota);
        }
        let (version, old) = before.map_or((0, &[][..]), |before| (before.plans.version + 1, &before.plans.plans[..]));

        // By index, and by name. Those of the version before keep their places.
        let mut plans: Vec<Option<PlanTicks>> = old.iter().map(|_| None).collect();
        let mut names = HashMap::with_hasher(RandomState::new());
        for (name, plan) in described {
            let was = before.and_then(|before| before.names.get(&*name)).copied();
            let index = was.map_or(plans.len(), usize::from);
            let Ok(number) = u16::try_from(index) else { return Err(BuildError::TooManyPlans) };
            let living = old.get(index).filter(|old| usize::from(old.index) == index);
            let plan = compile(number, name, &plan, shadow, version, living, fleet)?;
            if names.insert(Arc::clone(&plan.name), number).is_some() {
                return Err(BuildError::DuplicatePlan { plan: plan.name.to_string() });
            }
            if index == plans.len() { plans.push(Some(plan)) } else { plans[index] = Some(plan) }
        }

        let known = |name: String| match names.get(&*name) {
            Some(index) => Ok(Some(*index)),
            None if unknown_is_default => Ok(None),
            None => Err(BuildError::UnknownPlan { plan: name }),
        };
        let mut there = plans.iter().flatten();
        let default = match (default, there.next(), there.next()) {
            (Some(name), ..) => match names.get(&*name) {
                Some(index) => usize::from(*index),
                None => return Err(BuildError::UnknownPlan { plan: name }),
            },
            (None, Some(plan), None) => usize::from(plan.index),
            (None, ..) => return Err(BuildError::NoDefaultPlan),
        };
        let is_gone =
            |(index, old): &(usize, &Arc<PlanTicks>)| usize::from(old.index) == *index && plans[*index].is_none();
        let joined = old.iter().enumerate().filter(is_gone).map(|(_, old)| Arc::clone(&old.home)).collect();
        if let Some(plan) = &mut plans[default] {
            plan.joined = joined;
        }
        let plans: Vec<Option<Arc<PlanTicks>>> = plans.into_iter().map(|plan| plan.map(Arc::new)).collect();
        let Some(default) = plans[default].clone() else { return Err(BuildError::NoDefaultPlan) };
        let overrides = overrides.into_iter().map(|(key, name)| Ok((key, known(name)?.unwrap_or(default.index))));
        let overrides = overrides.collect::<Result<HashMap<_, _, _>, BuildError>>()?;

        // One that was removed before went to another, which may be there still.
        let place = |(index, plan): (usize, &Option<Arc<PlanTicks>>)| {
            let went_to = || old.get(index).and_then(|old| plans[usize::from(old.index)].as_ref());
            Arc::clone(plan.as_ref().or_else(went_to).unwrap_or(&default))
        };
        let plans: Vec<_> = plans.iter().enumerate().map(place).collect();
        let plain = overrides.is_empty() && resolver.is_none();
        let simple = default.simple.filter(|_| plain);
        let plans = Plans::new(version, at, plans, default, old);
        #[cfg(feature = "global")]
        let plans = plans.with_ledgers(before.map(|before| &before.plans));
        let (overrides, names) = (Arc::new(overrides), Arc::new(names));
        Ok(Self { plans, plain, simple, overrides, resolver, names, unknown_is_default })
    }

    /// The same policy once more, from the instant `at` on, though time was later before.
    pub(crate) fn rewound(&self, at: Now) -> Self {
        let plans = self.plans.rewound(at);
        Self {
            plain: self.plain,
            simple: plans.default.simple.filter(|_| self.plain),
            overrides: Arc::clone(&self.overrides),
            resolver: self.resolver.clone(),
            names: Arc::clone(&self.names),
            unknown_is_default: self.unknown_is_default,
            plans,
        }
    }

    /// The plan of `key`, where the caller has named `given` or none. It asks the resolver, which may cost anything and say
    /// something else the next time: each check calls it once, and hands down the answer.
    #[inline]
    pub(crate) fn plan_of(&self, key: &K, given: Option<PlanId>) -> &Arc<PlanTicks> {
        match given {
            None if self.plain => &self.plans.default,
            Some(id) if self.overrides.is_empty() => self.plans.get(id.0),
            _ => self.look_up(key, given),
        }
    }

    /// Whether all keys are on the same plan, where the caller has named `given` or none.
    pub(crate) fn is_for_all(&self, given: Option<PlanId>) -> bool {
        if given.is_none() { self.plain } else { self.overrides.is_empty() }
    }

    fn look_up(&self, key: &K, given: Option<PlanId>) -> &Arc<PlanTicks> {
        if let Some(index) = self.overrides.get(key) {
            return self.plans.get(*index);
        }
        let resolved = || self.resolver.as_ref().and_then(|resolve| resolve(key, &self.names()));
        given.or_else(resolved).map_or(&self.plans.default, |id| self.plans.get(id.0))
    }

    pub(crate) fn names(&self) -> PlanNames<'_> {
        PlanNames { names: &self.names }
    }

    /// The plan called `name`, or the default if that is what an unknown one stands for.
    pub(crate) fn named(&self, name: &str) -> Option<PlanId> {
        self.names().id(name).or_else(|| self.unknown_is_default.then_some(PlanId(self.plans.default.index)))
    }
}

fn compile(
    index: u16,
    name: String,
    plan: &Plan,
    shadow: bool,
    version: u64,
    old: Option<&Arc<PlanTicks>>,
    fleet: &Fleet,
) -> Result<PlanTicks, BuildError> {
    if plan.quotas.is_empty() && plan.global.is_empty() && plan.in_flight.is_none() && !plan.unlimited {
        return Err(BuildError::EmptyPlan { plan: name });
    }
    if plan.quotas.len() + plan.global.len() > MAX_QUOTAS {
        return Err(BuildError::TooManyQuotas { plan: name });
    }
    if plan.in_flight == Some(0) {
        return Err(BuildError::NothingInFlight { plan: name });
    }
    let mut quotas: Vec<Granted> = Vec::with_capacity(plan.quotas.len());
    for quota in &plan.quotas {
        let ticks = QuotaTicks::new(*quota)?;
        let empty = ticks.charge(ticks.burst());
        let granted = Granted { name: quota.name().into(), quota: *quota, ticks, empty };
        if quotas.iter().any(|other| other.name == granted.name) {
            return Err(BuildError::DuplicateQuota { plan: name, quota: granted.name.to_string() });
        }
        quotas.push(granted);
    }
    let shared = Shared::compile(&name, &plan.global, fleet)?;
    for (n, (label, ..)) in shared.each().enumerate() {
        let before = quotas.iter().map(|quota| &quota.name).chain(shared.each().take(n).map(|(label, ..)| label));
        if before.into_iter().any(|other| other == label) {
            return Err(BuildError::DuplicateQuota { plan: name, quota: label.to_string() });
        }
    }
    let shadow = shadow || plan.shadow;
    let is_plain = !shadow
        && plan.in_flight.is_none()
        && quotas.iter().all(|quota| quota.quota.counted() == Unit::REQUESTS)
        && shared.each().all(|(_, unit, _)| unit == Unit::REQUESTS);
    let places = places(&quotas, old.map(|old| &**old));
    let quotas = quotas.into_boxed_slice();
    let grants_the_same = |old: &&Arc<PlanTicks>| old.quotas == quotas && old.shared == shared;
    let since = old.filter(grants_the_same).map_or(version as u32, |old| old.since);
    let simple = match (&quotas[..], &places[..]) {
        ([only], [0]) if is_plain && shared.is_empty() => Simple::new(index, since, only.ticks),
        _ => None,
    };
    let is_paired = is_plain && quotas.len() < 2 && shared.each().count() == 1;
    let home = old.map_or_else(|| Arc::new(Home::new()), |old| Arc::clone(&old.home));
    Ok(PlanTicks {
        index,
        name: name.into(),
        quotas,
        places,
        shared,
        in_flight: plan.in_flight,
        shadow,
        simple,
        is_paired,
        since,
        home,
        joined: [].into(),
    })
}
