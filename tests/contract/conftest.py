from support.speech import new_scenario, scenario_on_harness

scenario = scenario_on_harness(new_scenario)
