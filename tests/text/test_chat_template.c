/* Conversations as text: templates in the manner of well-known models against Jinja2, built-in
 * formats, and where a model's template is found. */
#include "format/gguf.h"
#include "text/chat_fixtures.h"
#include "text/chat_template.h"
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

static int make_folder(void **state) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kermes-chat-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return use_utc(state) == 0 && mkdtemp(folder) ? 0 : -1;
}

static const char *in_folder(const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text) {
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    fwrite(text, 1, strlen(text), f);
    fclose(f);
}

static void forget(const char *name) { unlink(in_folder(name)); }

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

/* ---- Against Jinja2 ---- */

static void check_families(const json_t *f, size_t at_least) {
    const json_t *cases = json_object_get(f, "cases"), *texts = json_object_get(f, "templates");
    assert_true(json_array_size(cases) >= at_least);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *is = json_object_get(c, "is");
        const char *name = json_string_value(json_object_get(c, "template"));
        const char *what = json_string_value(json_object_get(c, "conversation"));
        const char *how = json_string_value(json_object_get(c, "setting"));
        const json_t *text = json_object_get(texts, name);
        const json_t *set = json_object_get(json_object_get(f, "settings"), how);
        const json_t *thinking = json_object_get(set, "enable_thinking");
        km_chat_options o = {
            .bos = "<s>",
            .eos = "</s>",
            .now = 1700000000,
            .tools = json_object_get(set, "tools"),
            .complete = json_is_false(json_object_get(set, "add_generation_prompt")),
            .thinking = json_is_false(thinking) ? KM_THINKING_OFF : KM_THINKING_DEFAULT};
        km_error err = {0};
        km_text out = {0};
        km_chat_template *t =
            km_chat_template_parse(json_string_value(text), json_string_length(text), name, &err);
        if (t)
            km_chat_render_json(t, json_object_get(json_object_get(f, "conversations"), what), &o,
                                &out, &err);
        if (is && err.code) fail_msg("%s, %s, %s fails: %s", name, what, how, err.text);
        if (!is && !err.code)
            fail_msg("%s, %s, %s gives \"%s\"", name, what, how, km_text_str(&out));
        if (is && strcmp(km_text_str(&out), json_string_value(is)) != 0)
            fail_msg("%s, %s, %s gives \"%s\",\nJinja2 \"%s\"", name, what, how, km_text_str(&out),
                     json_string_value(is));
        km_text_free(&out);
        km_chat_template_free(t);
    }
}

static void templates_in_the_manner_of_models_render_as_in_jinja2(void **state) {
    (void)state;
    json_t *f = chat_fixture("families.json");
    check_families(f, 400);
    json_decref(f);
}

static void templates_of_models_render_as_in_jinja2_where_they_are(void **state) {
    (void)state;
    const char *path = getenv("KERMES_CHAT_FIXTURES"); /* made with make_chat.py --real */
    if (!path) skip();
    json_t *f = load_json(path);
    check_families(f, 1);
    json_decref(f);
}

/* ---- Built in ---- */

static const km_message turns[] = {
    {"system", " Be brief."}, {"user", "Hi "}, {"assistant", "Hello."}, {"user", "1+1?"}};

static void expect(const char *name, const km_message *m, size_t n, const km_chat_options *o,
                   const char *want) {
    km_error err = {0};
    km_text out = {0};
    km_chat_template *t = km_chat_template_named(name, &err);
    if (!t || km_chat_render(t, m, n, o, &out, &err) != KM_OK) fail_msg("%s: %s", name, err.text);
    assert_string_equal(km_text_str(&out), want);
    km_text_free(&out);
    km_chat_template_free(t);
}

static void built_in_formats_write_what_their_models_know(void **state) {
    (void)state;
    km_chat_options o = {.bos = "<s>", .eos = "</s>"};
    expect(
        "chatml", turns, 4, &o,
        "<|im_start|>system\n Be brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
    expect(
        "llama2", turns, 4, &o,
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] 1+1? [/INST]");
    expect(
        "llama3", turns, 2, &o,
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect("mistral", turns, 4, &o,
           "<s>[INST]  Be brief.\n\nHi [/INST] Hello.</s>[INST] 1+1?[/INST]");
    expect("mistral-nemo", turns + 1, 3, &o, "<s>[INST]Hi [/INST]Hello.</s>[INST]1+1?[/INST]");
    expect(
        "gemma", turns, 4, &o,
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
        "<start_of_turn>user\n1+1?<end_of_turn>\n<start_of_turn>model\n");
    expect("phi3", turns, 2, &o,
           "<|system|>\n Be brief.<|end|>\n<|user|>\nHi <|end|>\n<|assistant|>\n");
    expect("zephyr", turns + 1, 2, &(km_chat_options){.eos = "</s>", .complete = true},
           "<|user|>\nHi </s>\n<|assistant|>\nHello.</s>\n");
    expect("vicuna", turns, 4, &o,
           "<s> Be brief. USER: Hi  ASSISTANT: Hello.</s>USER: 1+1? ASSISTANT:");
    expect("alpaca", turns + 3, 1, &o, "<s>### Instruction:\n1+1?\n\n### Response:\n");
    expect("deepseek-r1", turns + 3, 1, &(km_chat_options){.thinking = KM_THINKING_OFF},
           "<｜User｜>1+1?<｜Assistant｜><think>\n\n</think>\n\n");
    expect("qwen3", turns + 3, 1, &(km_chat_options){.thinking = KM_THINKING_OFF},
           "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

/* A built-in and a template of the same family, on a conversation that both know. */
static void built_in_formats_equal_the_templates_of_their_families(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"chatml", "smollm2"}, {"chatml", "qwen2.5"},
                                           {"qwen3", "qwen3"},    {"gemma", "gemma3"},
                                           {"phi3", "phi3"},      {"mistral-v1", "mistral-v1"}};
    static const km_message all[] = {
        {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello."}, {"user", "1+1?"}};
    json_t *f = chat_fixture("families.json"), *texts = json_object_get(f, "templates");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int off = 0; off < 2; off++) {
            const json_t *text = json_object_get(texts, pairs[i][1]);
            km_chat_options o = {.bos = "<s>",
                                 .eos = "</s>",
                                 .thinking = off ? KM_THINKING_OFF : KM_THINKING_DEFAULT};
            km_error err = {0};
            km_text out = {0};
            km_chat_template *t = km_chat_template_parse(
                json_string_value(text), json_string_length(text), pairs[i][1], &err);
            assert_non_null(t);
            if (km_chat_render(t, all, 4, &o, &out, &err) != KM_OK) fail_msg("%s", err.text);
            expect(pairs[i][0], all, 4, &o, km_text_str(&out));
            km_text_free(&out);
            km_chat_template_free(t);
        }
    json_decref(f);
}

static void every_built_in_renders_and_an_unknown_name_lists_them(void **state) {
    (void)state;
    const char *name, *about;
    size_t n = 0;
    for (; (name = km_chat_template_builtin(n, &about)); n++) {
        km_error err = {0};
        km_text with = {0}, without = {0};
        km_chat_template *t = km_chat_template_named(name, &err);
        assert_non_null(t);
        assert_true(strlen(about) >= 5);
        assert_int_equal(km_chat_render(t, turns, 4,
                                        &(km_chat_options){.bos = "<s>", .eos = "</s>"}, &with,
                                        &err),
                         KM_OK);
        assert_int_equal(km_chat_render(t, turns, 4, NULL, &without, &err),
                         KM_OK); /* no such tokens */
        static const char *const said[] = {"Be brief.", "Hi", "Hello.", "1+1?"};
        for (int i = 0; i < 4; i++) assert_non_null(strstr(km_text_str(&without), said[i]));
        assert_null(strstr(km_text_str(&without), "<s>"));
        assert_null(strpbrk(km_text_str(&with), "\001\002"));
        km_text_free(&with);
        km_text_free(&without);
        km_chat_template_free(t);
    }
    assert_true(n >= 15);
    km_error err = {0};
    assert_null(km_chat_template_named("frob", &err));
    assert_non_null(strstr(err.text, "no chat template 'frob'; there are chatml, qwen3, llama2"));
}

static void built_in_formats_refuse_roles_and_contents_they_do_not_know(void **state) {
    (void)state;
    km_error err = {0};
    km_text out = {0};
    km_text_add(&out, "kept");
    km_chat_template *t = km_chat_template_named("chatml", &err);
    km_message tool[] = {{"user", "x"}, {"tool", "y"}};
    assert_int_equal(km_chat_render(t, tool, 2, NULL, &out, &err), KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "knows no role 'tool'"));
    assert_string_equal(out.data, "kept");
    err = (km_error){0};
    km_message broken[] = {{"user", "a\xff"}};
    assert_int_equal(km_chat_render(t, broken, 1, NULL, &out, &err), KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "message 1 is not valid UTF-8"));
    km_text_free(&out);
    km_chat_template_free(t);
}

/* ---- Jinja, through the same door ---- */

static void a_refused_system_message_can_go_into_the_question(void **state) {
    (void)state;
    static const char text[] =
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
    km_error err = {0};
    km_text out = {0};
    km_chat_template *t = km_chat_template_parse(text, strlen(text), NULL, &err);
    assert_int_equal(km_chat_render(t, turns, 2, NULL, &out, &err), KM_ERR_STATE);
    assert_non_null(strstr(
        err.text, "chat template, line 1: the template refuses this conversation: no system"));
    err = (km_error){0};
    assert_int_equal(
        km_chat_render(t, turns, 2, &(km_chat_options){.fold_system = true}, &out, &err), KM_OK);
    assert_string_equal(km_text_str(&out), "[user: Be brief.\n\nHi ]");
    km_text_free(&out);
    km_chat_template_free(t);
}

static void thinking_and_further_variables_reach_the_template(void **state) {
    (void)state;
    static const char text[] =
        "{{ enable_thinking is defined }}{{ enable_thinking }}{{ name }}{{ bos_token is defined }}";
    km_error err = {0};
    km_text out = {0};
    json_t *more = json_pack("{s:s}", "name", "!");
    km_chat_template *t = km_chat_template_parse(text, strlen(text), NULL, &err);
    assert_true(km_chat_template_thinks(t));
    km_chat_render(t, turns, 1, &(km_chat_options){.more = more}, &out, &err);
    km_chat_render(t, turns, 1, &(km_chat_options){.thinking = KM_THINKING_ON, .bos = ""}, &out,
                   &err);
    km_chat_render(t, turns, 1, &(km_chat_options){.thinking = KM_THINKING_OFF}, &out, &err);
    assert_string_equal(km_text_str(&out), "False!FalseTrueTrueTrueTrueFalseFalse");
    json_decref(more);
    km_text_free(&out);
    km_chat_template_free(t);
}

/* ---- Files ---- */

static void expect_loaded(const char *path, const char *want) {
    km_error err = {0};
    km_text out = {0};
    km_chat_template *t = km_chat_template_load(path, &err);
    if (!t) fail_msg("%s", err.text);
    assert_int_equal(km_chat_render(t, turns + 3, 1, NULL, &out, &err), KM_OK);
    assert_string_equal(km_text_str(&out), want);
    km_text_free(&out);
    km_chat_template_free(t);
}

static void expect_none(const char *path, km_status code, const char *part) {
    km_error err = {0};
    km_chat_template *t = km_chat_template_load(path, &err);
    assert_null(t);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, part)) fail_msg("\"%s\" lacks \"%s\"", err.text, part);
}

static void a_models_template_is_found_in_its_folder(void **state) {
    (void)state;
    expect_none(folder, KM_ERR_STATE, "has no chat template");
    write_file("tokenizer_config.json", "{\"bos_token\":\"<s>\"}");
    expect_none(folder, KM_ERR_STATE, "has no chat template");
    write_file("tokenizer_config.json", "{\"chat_template\":\"A{{ messages[0].content }}\"}");
    expect_loaded(folder, "A1+1?");
    expect_loaded(in_folder("tokenizer_config.json"), "A1+1?");
    write_file("tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
               "{\"name\":\"default\",\"template\":\"D\"}]}");
    expect_loaded(folder, "D");
    write_file("chat_template.jinja", "J{{ messages[0].role }}\n");
    expect_loaded(folder, "Juser");
    expect_loaded(in_folder("chat_template.jinja"), "Juser");
    write_file("chat_template.jinja", "\n{{ x");
    expect_none(folder, KM_ERR_FORMAT, "chat_template.jinja, line 2: {{ is not closed");
    forget("chat_template.jinja");
    forget("tokenizer_config.json");
    expect_none(in_folder("nothing.jinja"), KM_ERR_FILE, "cannot open");
}

static void a_models_template_is_found_in_its_gguf(void **state) {
    (void)state;
    km_error err = {0};
    km_gguf_out *o = km_gguf_out_new(&err);
    km_gguf_put_string(o, "general.architecture", "llama");
    assert_int_equal(km_gguf_write(o, in_folder("a.gguf"), &err), KM_OK);
    km_gguf_out_free(o);
    expect_none(in_folder("a.gguf"), KM_ERR_STATE, "has no chat template");
    o = km_gguf_out_new(&err);
    km_gguf_put_string(o, "general.architecture", "llama");
    km_gguf_put_string(o, "tokenizer.chat_template", "G{{ messages|length }}");
    assert_int_equal(km_gguf_write(o, in_folder("a.gguf"), &err), KM_OK);
    km_gguf_out_free(o);
    expect_loaded(in_folder("a.gguf"), "G1");
    forget("a.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_in_the_manner_of_models_render_as_in_jinja2),
        cmocka_unit_test(templates_of_models_render_as_in_jinja2_where_they_are),
        cmocka_unit_test(built_in_formats_write_what_their_models_know),
        cmocka_unit_test(built_in_formats_equal_the_templates_of_their_families),
        cmocka_unit_test(every_built_in_renders_and_an_unknown_name_lists_them),
        cmocka_unit_test(built_in_formats_refuse_roles_and_contents_they_do_not_know),
        cmocka_unit_test(a_refused_system_message_can_go_into_the_question),
        cmocka_unit_test(thinking_and_further_variables_reach_the_template),
        cmocka_unit_test(a_models_template_is_found_in_its_folder),
        cmocka_unit_test(a_models_template_is_found_in_its_gguf),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
