//! `credit_poll`: a model of Credit scheduling whose tenants poll for replies without end (FairGV
//! §5.3). The device is shared as under `credit_hs`; what differs is how a tenant waits, which
//! [`PolicyId::tenants_poll`](crate::PolicyId::tenants_poll) tells a simulator.

pub(super) use super::credit_hs::CreditHs as CreditPoll;
