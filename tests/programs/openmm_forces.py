"""OpenMM's force types on the CUDA platform against its reference platform, which is plain C++."""

import sys

import numpy
import openmm as mm
from openmm import unit

ATOMS = 60
SIDE = 2.4  # nm
BONDS = [(atom, atom + 1) for atom in range(ATOMS) if atom % 3 < 2]
failures = []


def chains():
    """Charged chains of three atoms, far enough apart for no force to be steep."""
    places = numpy.stack(numpy.meshgrid(*[numpy.arange(3)] * 3), -1).reshape(-1, 3)[: ATOMS // 3]
    middles = (places + 0.5) * SIDE / 3
    bent = numpy.array([[-0.1, 0.02, 0], [0, 0, 0], [0.1, 0.03, 0.04]])
    atoms = (middles[:, None] + bent).reshape(-1, 3)
    return atoms + numpy.random.default_rng(3).normal(0, 0.01, atoms.shape)


def bonded(force, arity, parameters):
    """The force on each run of so many atoms of every chain; four are over two chains."""
    for first in range(0, ATOMS - 3, 3):
        force(*range(first, first + arity), *parameters)


def nonbonded(method):
    force = mm.NonbondedForce()
    for atom in range(ATOMS):
        force.addParticle([0.4, -0.8, 0.4][atom % 3], 0.2, 0.3)
    force.setNonbondedMethod(method)
    force.setCutoffDistance(0.9)
    force.createExceptionsFromBonds(BONDS, 0.5, 0.5)
    return force


def pairs(method):
    force = mm.CustomNonbondedForce("a1*a2*exp(-2*r)/r")
    force.addPerParticleParameter("a")
    for atom in range(ATOMS):
        force.addParticle([0.1 * (atom % 5)])
    # The same pairs as above: all forces of a system leave out the same.
    force.createExclusionsFromBonds(BONDS, 2)
    force.setNonbondedMethod(method)
    force.setCutoffDistance(0.9)
    return force


def periodic():
    """All forces of a system have a cutoff, or none has."""
    yield "nonbonded, periodic", nonbonded(mm.NonbondedForce.CutoffPeriodic)
    yield "custom pairs, periodic", pairs(mm.CustomNonbondedForce.CutoffPeriodic)


def alone():
    bond = mm.HarmonicBondForce()
    bonded(bond.addBond, 2, (0.09, 2000))
    yield "harmonic bonds", bond
    angle = mm.HarmonicAngleForce()
    bonded(angle.addAngle, 3, (2.1, 80))
    yield "harmonic angles", angle
    torsion = mm.PeriodicTorsionForce()
    bonded(torsion.addTorsion, 4, (3, 0.5, 4))
    yield "periodic torsions", torsion
    rb = mm.RBTorsionForce()
    bonded(rb.addTorsion, 4, (1, -0.5, 0.4, 0.3, -0.2, 0.1))
    yield "Ryckaert-Bellemans torsions", rb
    yield "nonbonded", nonbonded(mm.NonbondedForce.NoCutoff)
    yield "custom pairs", pairs(mm.CustomNonbondedForce.NoCutoff)
    custom = mm.CustomBondForce("k*(r-r0)^2 + c*sin(r)")
    custom.addGlobalParameter("c", 3)
    for name in ("k", "r0"):
        custom.addPerBondParameter(name)
    for first in range(0, ATOMS, 3):
        custom.addBond(first, first + 2, [150 + first, 0.2])
    yield "custom bonds", custom
    outside = mm.CustomExternalForce("w*((x-0.5)^2 + 2*abs(y-1) + z^4)")
    outside.addPerParticleParameter("w")
    for atom in range(ATOMS):
        outside.addParticle(atom, [0.5 + atom])
    yield "external field", outside
    born = mm.GBSAOBCForce()
    for atom in range(ATOMS):
        born.addParticle([0.4, -0.8, 0.4][atom % 3], 0.15, 0.8)
    yield "implicit solvent", born
    centroid = mm.CustomCentroidBondForce(2, "20*distance(g1,g2)^2")
    centroid.addBond([centroid.addGroup(range(0, 9)), centroid.addGroup(range(30, 42))])
    yield "centroids", centroid


def system(parts):
    whole = mm.System()
    for atom in range(ATOMS):
        whole.addParticle(12 if atom % 3 == 1 else 1)
    whole.setDefaultPeriodicBoxVectors((SIDE, 0, 0), (0, SIDE, 0), (0, 0, SIDE))
    for group, (_, force) in enumerate(parts):
        force.setForceGroup(group)
        whole.addForce(force)
    return whole


def context(platform, parts):
    # Each platform has its own: a force belongs to one system.
    steps = mm.VerletIntegrator(0.0005)
    made = mm.Context(system(parts), steps, mm.Platform.getPlatformByName(platform))
    made.setPositions(chains())
    return made, steps


def look(made, group=-1):
    groups = -1 if group < 0 else 1 << group
    state = made.getState(getForces=True, getEnergy=True, getPositions=True, groups=groups)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    per_length = unit.kilojoule_per_mole / unit.nanometer
    force = state.getForces(asNumpy=True).value_in_unit(per_length)
    return energy, force, state.getPositions(asNumpy=True).value_in_unit(unit.nanometer)


def check(name, got, expected, tolerance):
    """To single precision, as the platform computes by default."""
    scale = max(1, numpy.abs(expected).max())
    if not numpy.abs(got - expected).max() <= tolerance * scale:
        failures.append(f"{name}: {numpy.ravel(got)[:4]}, expected {numpy.ravel(expected)[:4]}")


def compare(forces):
    """How many types were compared."""
    names = [name for name, _ in forces()]
    (ours, our_steps), (theirs, their_steps) = (
        context(platform, list(forces())) for platform in ("CUDA", "Reference")
    )
    for group, name in enumerate(names):
        (energy, force, _), (expected, reference, _) = look(ours, group), look(theirs, group)
        if not numpy.abs(reference).max() > 0:
            failures.append(f"{name}: no force at all")
        check(f"energy of {name}", numpy.array(energy), numpy.array(expected), 2e-4)
        check(f"forces of {name}", force, reference, 2e-4)
    our_steps.step(20)
    their_steps.step(20)
    check(f"positions after 20 steps of {names[0]}", look(ours)[2], look(theirs)[2], 1e-4)
    return len(names)


def main():
    compared = compare(alone) + compare(periodic)
    for failure in failures:
        print(failure)
    if failures:
        sys.exit(f"{len(failures)} failed")
    print(f"all {compared} force types agree")


if __name__ == "__main__":
    main()
