-- What administrators list, and what is looked at after a restart, is read in this order.
CREATE INDEX instances_shown_all ON instances (seq) WHERE NOT hidden;
