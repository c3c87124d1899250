from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nexus_lab.engine import EngineError, cap_threads, machine_facts
from nexus_lab.engine.threads import available_cores, physical_cores


def test_facts_are_json_and_name_what_matters():
    facts = machine_facts(threads=2)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["threads"] == 2
    assert {"python", "llama-cpp-python", "numpy", "nexus_lab"} <= set(facts["versions"])
    assert facts["cores_physical"] <= facts["cores_logical"]
    assert facts["memory_bytes"] > 2**20


def test_threads_are_capped_to_physical_cores():
    assert 1 <= physical_cores() <= available_cores()
    assert cap_threads(None) == physical_cores()
    assert cap_threads(10_000) == physical_cores()
    assert cap_threads(1) == 1
    with pytest.raises(EngineError):
        cap_threads(0)


def test_torch_is_capped_whether_it_comes_before_or_after():
    code = (
        "from nexus_lab.engine import cap_threads\n"
        "cap_threads(1)\n"
        "import torch\n"
        "after = torch.get_num_threads()\n"
        "torch.set_num_threads(2)\n"
        "cap_threads(1)\n"
        "print(after, torch.get_num_threads())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "1"]


def test_a_wait_policy_of_the_user_stands_and_ours_does_not_stay():
    code = (
        "import os\n"
        "from nexus_lab.engine.native import llama\n"
        "llama()\n"
        "print(os.environ.get('OMP_WAIT_POLICY'))\n"
    )
    for given in (None, "active"):
        environment = {"PATH": "", **({"OMP_WAIT_POLICY": given} if given else {})}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == str(given)


def test_importing_the_room_loads_nothing_heavy():
    code = (
        "import sys, nexus_lab.engine as engine\n"
        "engine.Engine, engine.find_models, engine.GrammarMask, engine.SequenceState\n"
        "heavy = {'llama_cpp', 'torch', 'llguidance', 'jinja2', 'huggingface_hub'} & set(sys.modules)\n"
        "print(sorted(heavy))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
