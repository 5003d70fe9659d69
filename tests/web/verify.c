/* Every op as the WebAssembly build computes it, against the reference, as `kermes verify --quick` does.
 * Argument: of the larger cases, one in so many. */
#include "ops/verify.h"
#include <stdio.h>
#include <stdlib.h>

static int checks, failed, cases;

static void tell(void *user, const km_verify_result *r, int index, int total) {
    (void)user, (void)index, (void)total;
    checks++;
    cases += r->cases;
    if (r->passed) return;
    failed++;
    printf("FAIL %s %s, %d of %d cases: %s\n", r->op, r->dtype, r->failed, r->cases, r->worst);
}

int main(int argc, char **argv) {
    km_error err = {0};
    km_verify_how how = {.seed = 1, .quick = true, .one_in = argc > 1 ? atoi(argv[1]) : 0};
    if (argc > 2) how.op = argv[2];
    if (km_verify("cpu", &how, tell, NULL, &err) != KM_OK) {
        printf("verify: %s\n", err.text);
        return 1;
    }
    printf("%d checks, %d cases, %d failed\n", checks, cases, failed);
    return failed != 0;
}
