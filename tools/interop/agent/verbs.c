#include "agent.h"
int scenarios(int in, int out) { (void)in; say(out, "error not yet"); return 1; }
