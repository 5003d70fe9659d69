/* CPU detection: agreement with what the system says, and the override that only lowers.
 * Everything is read once per process, so each setting is tried in a child. */
#include "kermes_isas.h"
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
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

static bool is_built(int isa) {
#ifdef KM_WITHOUT_AVX2
    if (isa == KM_ISA_AVX2) return false;
#endif
#ifdef KM_WITHOUT_AVX512
    if (isa == KM_ISA_AVX512) return false;
#endif
#ifdef KM_WITHOUT_AMX
    if (isa == KM_ISA_AMX) return false;
#endif
    return isa < KM_ISA_COUNT;
}

static void an_override_lowers_the_kernel_set_and_never_raises_it(void **state) {
    int best = isa_with(NULL);
    assert_in_range(best, 0, KM_ISA_COUNT - 1);
    for (int i = 0; i < KM_ISA_COUNT; i++) {
        int wanted = i < best ? i : best;
        while (!is_built(wanted)) wanted--; /* a build for one machine leaves sets out */
        assert_int_equal(isa_with(km_isa_name((km_isa)i)), wanted);
    }
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
    assert_string_equal(km_isa_name(KM_ISA_AMX), "amx");
    assert_string_equal(km_isa_name((km_isa)77), "unknown");
}

/* ---- Other processors ---- */

#if defined(__x86_64__)
/* A processor as it tells of itself: one with AMX, until a test takes something away. */
static struct fake {
    uint32_t leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf71_a, tile_a, tile_b, tile_c;
    uint64_t saved;
    bool permits;
    int asked;
} fake;

static void be_whole(void) {
    fake = (struct fake){.leaf1_c = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29,
                         .leaf7_b = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31,
                         .leaf7_c = 1u << 11,
                         .leaf7_d = 1u << 22 | 1u << 24 | 1u << 25,
                         .leaf71_a = 1u << 4 | 1u << 5,
                         .tile_a = 1024u << 16 | 8192,
                         .tile_b = 8u << 16 | 64,
                         .tile_c = 16,
                         .saved = 0xE6 | 3u << 17,
                         .permits = true};
}

static bool fake_leaf(uint32_t leaf, uint32_t sub, uint32_t r[4]) {
    memset(r, 0, 4 * sizeof *r);
    if (leaf == 1) r[2] = fake.leaf1_c;
    if (leaf == 7 && sub == 0)
        r[0] = 1, r[1] = fake.leaf7_b, r[2] = fake.leaf7_c, r[3] = fake.leaf7_d;
    if (leaf == 7 && sub == 1) r[0] = fake.leaf71_a;
    if (leaf == 0x1d) r[0] = fake.tile_a, r[1] = fake.tile_b, r[2] = fake.tile_c;
    return leaf == 1 || leaf == 7 || (leaf == 0x1d && fake.tile_a);
}
static uint64_t fake_saved(void) { return fake.saved; }
static bool fake_permit(void) {
    fake.asked++;
    return fake.permits;
}

/* The set such a processor gets, and why not tiles. */
static km_isa judged(const char **why) {
    static const km_cpu_source from = {fake_leaf, fake_saved, fake_permit};
    km_cpu c = {0};
    km_cpu_read_features(&from, &c);
    assert_true(!c.amx || !c.amx_why);
    *why = c.amx_why;
    return km_cpu_best_isa(&c);
}
#endif

static void tiles_are_used_only_where_all_of_them_is_there(void **state) {
#if defined(__x86_64__)
    const char *why;
    be_whole();
    assert_int_equal(judged(&why), KM_ISA_AMX);
    assert_null(why);
    be_whole(),
        fake.tile_a = 0; /* a hypervisor that leaves the leaf out: palette 1 is what it is */
    assert_int_equal(judged(&why), KM_ISA_AMX);
    be_whole(), fake.leaf7_d = 0; /* no AMX at all is nothing to tell */
    assert_int_equal(judged(&why), KM_ISA_AVX512);
    assert_null(why);
    assert_int_equal(fake.asked, 0);
#else
    skip();
#endif
}

static void a_processor_that_claims_too_much_falls_back_and_says_why(void **state) {
#if defined(__x86_64__)
    const char *why;
    be_whole(), fake.permits = false;
    assert_int_equal(judged(&why), KM_ISA_AVX512);
    assert_non_null(strstr(why, "refuses"));
    be_whole(), fake.saved = 0xE6; /* the system saves no tiles: they must not even be asked for */
    assert_int_equal(judged(&why), KM_ISA_AVX512);
    assert_non_null(strstr(why, "does not save"));
    assert_int_equal(fake.asked, 0);
    be_whole(), fake.leaf7_d &= ~(1u << 25);
    assert_int_equal(judged(&why), KM_ISA_AVX512);
    assert_non_null(strstr(why, "missing"));
    be_whole(), fake.tile_b = 4u << 16 | 64;
    assert_int_equal(judged(&why), KM_ISA_AVX512);
    assert_non_null(strstr(why, "not 8 of 16"));
    be_whole(), fake.leaf7_c = 0;
    assert_int_equal(judged(&why), KM_ISA_AVX512);
    assert_non_null(strstr(why, "AVX-512"));
    be_whole(), fake.saved = 0x06 | 3u << 17; /* tiles without the wide registers */
    assert_int_equal(judged(&why), KM_ISA_AVX2);
    assert_non_null(why);
    be_whole(), fake.saved = 0;
    assert_int_equal(judged(&why), KM_ISA_BASE);
    be_whole(), fake.leaf1_c = 0;
    assert_int_equal(judged(&why), KM_ISA_BASE);
#else
    skip();
#endif
}

/* The kernel itself says no: a filter answers the request for tiles with EPERM. */
#if defined(__x86_64__) && defined(__linux__)
static int isa_without_permission(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 77;
    const km_cpu *c = km_cpu_info();
    return c->amx || km_cpu_isa() == KM_ISA_AMX ? 1 : 0;
}
#endif

static void a_refused_permission_leaves_the_next_best_set(void **state) {
#if defined(__x86_64__) && defined(__linux__)
    int got = in_child(isa_without_permission);
    if (got == 77) skip();
    assert_int_equal(got, 0);
#else
    skip();
#endif
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
    assert_true(!c->amx || (kernel_says("amx_tile") && kernel_says("amx_int8")));
    assert_true(c->amx || c->amx_why || !kernel_says("amx_tile"));
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
        cmocka_unit_test(a_refused_permission_leaves_the_next_best_set),
        cmocka_unit_test(tiles_are_used_only_where_all_of_them_is_there),
        cmocka_unit_test(a_processor_that_claims_too_much_falls_back_and_says_why),
        cmocka_unit_test(kernel_sets_have_names),
        cmocka_unit_test(the_answers_make_sense_and_stay),
        cmocka_unit_test(features_agree_with_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
