# examples/*.c are what a user would write: the public header, the shared library, nothing else.
# Each is also a test: it must run and exit with 0.
file(GLOB kermes_examples CONFIGURE_DEPENDS examples/*.c)
foreach(source IN LISTS kermes_examples)
    get_filename_component(name ${source} NAME_WE)
    add_executable(example_${name} ${source})
    target_compile_options(example_${name} PRIVATE -Wall -Wextra)
    target_link_libraries(example_${name} PRIVATE kermes_shared m)
    set_target_properties(example_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
endforeach()
