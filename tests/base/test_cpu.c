/* CPU detection: agreement with what the system says, and the override that only lowers.
 * Everything is read once per process, so each setting is tried in a child. */
#include "base/cpu.h"
#include "base/threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#ifdef __linux__
#include <sched.h>
#endif

static int in_child(int (*question)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(question());
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int isa_here(void) { return (int)km_cpu_isa(); }

static int isa_with(const char *wish) {
    if (wish)
        setenv("KERMES_ISA", wish, 1);
    else
        unsetenv("KERMES_ISA");
    int got = in_child(isa_here);
    unsetenv("KERMES_ISA");
    return got;
}

static void an_override_lowers_the_kernel_set_and_never_raises_it(void **state) {
    int best = isa_with(NULL);
    assert_in_range(best, 0, KM_ISA_COUNT - 1);
    for (int i = 0; i < KM_ISA_COUNT; i++)
        assert_int_equal(isa_with(km_isa_name((km_isa)i)), i < best ? i : best);
}

static void an_unknown_or_empty_override_is_ignored(void **state) {
    int best = isa_with(NULL);
    assert_int_equal(isa_with(""), best);
    assert_int_equal(isa_with("sse9"), best);
    assert_int_equal(isa_with("AVX2 "), best);
}

static void kernel_sets_have_names(void **state) {
    assert_string_equal(km_isa_name(KM_ISA_BASE), "base");
    assert_string_equal(km_isa_name(KM_ISA_AVX2), "avx2");
    assert_string_equal(km_isa_name(KM_ISA_AVX512), "avx512");
    assert_string_equal(km_isa_name((km_isa)77), "unknown");
}

static void the_answers_make_sense_and_stay(void **state) {
    const km_cpu *c = km_cpu_info();
    assert_ptr_equal(c, km_cpu_info());
    assert_true(c->name[0] != 0 && c->name[0] != ' ');
    assert_true(memchr(c->name, 0, sizeof c->name) != NULL);
    assert_non_null(c->arch);
    assert_true(c->cores >= 1);
    assert_int_equal(c->cores, km_cpu_count());
    assert_true(c->l1d == 0 || (c->l1d >= 4096 && c->l1d <= 1 << 20));
    assert_true(c->l2 == 0 || c->l2 >= c->l1d);
}

/* The kernel writes what it enabled in /proc/cpuinfo; a feature claimed there is claimed here. */
static bool kernel_says(const char *flag) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    assert_non_null(f);
    char line[8192], word[64];
    bool found = false;
    snprintf(word, sizeof word, " %s ", flag);
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, "flags", 5) != 0) continue;
        line[strcspn(line, "\n")] = ' ';
        found = strstr(line, word) != NULL;
        break;
    }
    fclose(f);
    return found;
}

static void features_agree_with_the_kernel(void **state) {
#if defined(__x86_64__) && defined(__linux__)
    const km_cpu *c = km_cpu_info();
    assert_string_equal(c->arch, "x86-64");
    assert_int_equal(c->avx2, kernel_says("avx2"));
    assert_int_equal(c->fma, kernel_says("fma"));
    assert_int_equal(c->f16c, kernel_says("f16c"));
    assert_int_equal(c->avx512, kernel_says("avx512f") && kernel_says("avx512bw") &&
                                    kernel_says("avx512dq") && kernel_says("avx512vl"));
    assert_int_equal(c->avx512_vnni, c->avx512 && kernel_says("avx512_vnni"));
    assert_int_equal(c->avx512_bf16, c->avx512 && kernel_says("avx512_bf16"));
    assert_int_equal(c->avx_vnni, kernel_says("avx_vnni"));
    assert_false(c->neon);
#else
    (void)kernel_says;
    skip();
#endif
}

#ifdef __linux__
static int count_on_one_core(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return -1;
    int first = 0;
    while (first < CPU_SETSIZE && !CPU_ISSET(first, &set)) first++;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) return -1;
    return km_cpu_count() * 10 + km_cpu_info()->cores;
}
#endif

static void only_cores_this_process_may_use_are_counted(void **state) {
#ifdef __linux__
    assert_int_equal(in_child(count_on_one_core), 11);
#else
    skip();
#endif
}

int main(void) {
    unsetenv("KERMES_ISA");
    const struct CMUnitTest tests[] = {
        /* First, while no test has asked in this process: children inherit what was read. */
        cmocka_unit_test(an_override_lowers_the_kernel_set_and_never_raises_it),
        cmocka_unit_test(an_unknown_or_empty_override_is_ignored),
        cmocka_unit_test(only_cores_this_process_may_use_are_counted),
        cmocka_unit_test(kernel_sets_have_names),
        cmocka_unit_test(the_answers_make_sense_and_stay),
        cmocka_unit_test(features_agree_with_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
