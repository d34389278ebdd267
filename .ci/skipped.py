"""Fails if a test was skipped that ALLOWED does not name. usage: skipped.py JUNIT_XML"""

import re
import sys
import xml.etree.ElementTree as ET

ALLOWED: dict[str, str] = {
    r"_on_mac$": "runs on macOS only",
}
"""A pattern for CLASSNAME::NAME of the test → why it may be skipped here."""

skipped = []
for case in ET.parse(sys.argv[1]).iter("testcase"):
    name = f"{case.get('classname')}::{case.get('name')}"
    reasons = [e.get("message") for e in case.iter("skipped") if e.get("type") == "pytest.skip"]
    if reasons and not any(re.search(pattern, name) for pattern in ALLOWED):
        skipped.append(f"{name}: {reasons[0]}")
if skipped:
    sys.exit("Skipped, and not allowed to be:\n  " + "\n  ".join(skipped))
