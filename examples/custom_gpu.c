/* A CUDA kernel of one's own as an op: softsign(x) = x / (1 + |x|). Its PTX is compiled by the driver,
 * which is opened at run time, and launched on the context's stream, between Kermes' own kernels and
 * without waiting for any of them. Where there is no GPU the op is made of Kermes' ops. */
#include <dlfcn.h>
#include <kermes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char ptx[] = ".version 7.0\n"
                          ".target sm_80\n"
                          ".address_size 64\n"
                          ".visible .entry softsign(.param .u64 x, .param .u64 y, .param .u32 n)\n"
                          "{\n"
                          "  .reg .pred %p;\n"
                          "  .reg .b32 %r<6>;\n"
                          "  .reg .f32 %f<4>;\n"
                          "  .reg .b64 %d<6>;\n"
                          "  mov.u32 %r1, %ctaid.x;\n"
                          "  mov.u32 %r2, %ntid.x;\n"
                          "  mov.u32 %r3, %tid.x;\n"
                          "  mad.lo.u32 %r4, %r1, %r2, %r3;\n"
                          "  ld.param.u32 %r5, [n];\n"
                          "  setp.ge.u32 %p, %r4, %r5;\n"
                          "  @%p bra done;\n"
                          "  ld.param.u64 %d1, [x];\n"
                          "  ld.param.u64 %d2, [y];\n"
                          "  mul.wide.u32 %d3, %r4, 4;\n"
                          "  cvta.to.global.u64 %d1, %d1;\n"
                          "  cvta.to.global.u64 %d2, %d2;\n"
                          "  add.u64 %d1, %d1, %d3;\n"
                          "  add.u64 %d2, %d2, %d3;\n"
                          "  ld.global.f32 %f1, [%d1];\n"
                          "  abs.f32 %f2, %f1;\n"
                          "  add.f32 %f2, %f2, 0f3F800000;\n" /* 1.0 */
                          "  div.rn.f32 %f3, %f1, %f2;\n"
                          "  st.global.f32 [%d2], %f3;\n"
                          "done:\n"
                          "  ret;\n"
                          "}\n";

/* The three calls of the driver that are needed; the rest is Kermes'. */
typedef struct driver {
    int (*load)(void **module, const void *image);
    int (*function)(void **f, void *module, const char *name);
    int (*launch)(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, void *stream, void **params, void **extra);
    void *softsign; /* the kernel, once it is loaded */
} driver;

static int find(void *library, const char *symbol, void *to) {
    void *p = library ? dlsym(library, symbol) : NULL;
    memcpy(to, &p, sizeof p); /* ISO C has no cast from an object to a function pointer */
    return p != NULL;
}

/* The context's GPU is current in this thread after km_ctx_stream. */
static int load(driver *d, km_ctx *ctx) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *module = NULL;
    return km_ctx_stream(ctx) && find(library, "cuModuleLoadData", &d->load) &&
           find(library, "cuModuleGetFunction", &d->function) &&
           find(library, "cuLaunchKernel", &d->launch) && d->load(&module, ptx) == 0 &&
           d->function(&d->softsign, module, "softsign") == 0;
}

static km_tensor *forward(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    driver *d = user;
    (void)n;
    if (!d->softsign) return km_div(ctx, in[0], km_add_scalar(ctx, km_abs(ctx, in[0]), 1));
    km_tensor *x = km_contiguous(ctx, in[0]);
    km_tensor *y = km_zeros(ctx, KM_F32, km_tensor_shape(x));
    void *from = km_tensor_device_data(x), *to = km_tensor_device_data(y);
    uint32_t count = (uint32_t)km_tensor_count(x);
    void *params[] = {&from, &to, &count};
    void *stream = km_ctx_stream(ctx);
    if (!from || !to || !stream) return NULL;
    int code =
        d->launch(d->softsign, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream, params, NULL);
    if (code != 0) km_ctx_fail(ctx, KM_ERR_GPU, "softsign: the driver says %d", code);
    return y;
}

/* dx = dy / (1 + |x|)^2, of Kermes' own ops. */
static void backward(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *out, km_tensor *grad_out,
                     km_tensor **grads, void *user) {
    (void)n, (void)out, (void)user;
    km_tensor *d = km_add_scalar(ctx, km_abs(ctx, in[0]), 1);
    grads[0] = km_div(ctx, grad_out, km_mul(ctx, d, d));
}

int main(void) {
    enum { N = 1000 };
    km_ctx *ctx = km_ctx_new("auto", 0);
    driver d = {0};
    float x[N], y[N], dx[N];
    double worst = 0;
    if (!ctx) return fprintf(stderr, "%s\n", km_last_error()), 1;
    int on_gpu = strncmp(km_ctx_device(ctx), "cuda", 4) == 0;
    if (on_gpu && !load(&d, ctx)) return fprintf(stderr, "the kernel cannot be loaded\n"), 1;
    km_custom_op softsign = {"softsign", forward, backward, &d};
    for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) / 50;
    km_tensor *p = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(N), x));
    km_require_grad(ctx, p, true);
    /* Between ops of Kermes' own: softsign(2 x) */
    km_tensor *twice = km_mul_scalar(ctx, p, 2), *out = km_custom(ctx, &softsign, &twice, 1);
    km_read(ctx, out, y, sizeof y);
    km_backward(ctx, km_sum(ctx, out, NULL, 0, false));
    km_read(ctx, km_grad(p), dx, sizeof dx);
    for (int i = 0; i < N; i++) {
        double t = 2 * (double)x[i], s = 1 + fabs(t);
        worst = fmax(worst, fmax(fabs(y[i] - t / s), fabs(dx[i] - 2 / (s * s))));
    }
    km_status status = km_ctx_status(ctx);
    if (status != KM_OK) fprintf(stderr, "%s\n", km_ctx_error(ctx));
    printf("softsign on %s by %s: off by %.1e at most\n", km_ctx_device(ctx),
           d.softsign ? "a kernel of our own" : "Kermes' ops (no GPU here)", worst);
    km_release(p);
    km_ctx_free(ctx);
    return status == KM_OK && worst < 1e-5 ? 0 : 1;
}
