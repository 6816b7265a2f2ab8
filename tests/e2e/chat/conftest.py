from support.chat import new_chat_scenario
from support.speech import scenario_on_harness

scenario = scenario_on_harness(new_chat_scenario)
