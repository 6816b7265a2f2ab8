from support.cluster import cluster
from support.speech import new_scenario, scenario_on_harness

__all__ = ["cluster", "scenario"]

scenario = scenario_on_harness(new_scenario)
