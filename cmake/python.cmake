# The Python package in python/: what cffi knows of the library is made from the header, and with the
# library it goes into a wheel (pip install ., make wheel). Its tests are pytest's, one CTest test for
# each file: python/tensors is python/tests/test_tensors.py. They need an interpreter with cffi, NumPy
# and pytest; -DKERMES_PYTHON=FILE names one.
set(KERMES_PYTHON "" CACHE FILEPATH "Python with cffi, NumPy and pytest, for its tests (empty: look for one)")

set(kermes_python_needs "cffi, numpy, pytest")
if(SKBUILD) # a wheel is being built, by this interpreter
    set(KERMES_PYTHON ${Python_EXECUTABLE})
    if(NOT KERMES_PYTHON)
        set(KERMES_PYTHON ${PYTHON_EXECUTABLE})
    endif()
elseif(NOT KERMES_PYTHON)
    foreach(candidate python3 /usr/bin/python3)
        execute_process(COMMAND ${candidate} -c "import ${kermes_python_needs}, sys; print(sys.executable)"
            RESULT_VARIABLE failed OUTPUT_VARIABLE found ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
        if(failed STREQUAL "0")
            set(KERMES_PYTHON ${found})
            break()
        endif()
    endforeach()
endif()
if(NOT KERMES_PYTHON)
    set(why "no Python with ${kermes_python_needs} here (scripts/setup test)")
    message(STATUS "Kermes: the Python package is not tested: ${why}")
    if(NOT KERMES_TESTS STREQUAL "OFF")
        add_test(NAME python/package COMMAND sh -c "echo 'skipped: ${why}'; exit 77")
        set_tests_properties(python/package PROPERTIES SKIP_RETURN_CODE 77 LABELS python)
    endif()
    return()
endif()

set(kermes_python_abi ${PROJECT_BINARY_DIR}/python/kermes/_abi.py)
add_custom_command(OUTPUT ${kermes_python_abi}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/python/kermes
    COMMAND ${KERMES_PYTHON} ${PROJECT_SOURCE_DIR}/python/make_abi.py
        ${PROJECT_SOURCE_DIR}/include/kermes.h ${kermes_python_abi} ${CMAKE_C_COMPILER}
    DEPENDS ${PROJECT_SOURCE_DIR}/include/kermes.h ${PROJECT_SOURCE_DIR}/python/make_abi.py
    COMMENT "Reading include/kermes.h for Python" VERBATIM)
add_custom_target(kermes_python_abi DEPENDS ${kermes_python_abi})

if(SKBUILD)
    install(FILES ${kermes_python_abi} DESTINATION kermes COMPONENT python)
    install(FILES $<TARGET_FILE:kermes_shared> DESTINATION kermes/lib RENAME libkermes.so
        COMPONENT python)
    return()
endif()

# In a build folder the package is the sources (links), the tables made here, and the library here.
if(KERMES_TESTS STREQUAL "OFF" OR KERMES_SANITIZED OR CMAKE_CROSSCOMPILING)
    return()
endif()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/python/kermes)
file(GLOB kermes_python_sources CONFIGURE_DEPENDS python/kermes/*.py python/kermes/py.typed)
foreach(source IN LISTS kermes_python_sources)
    get_filename_component(name ${source} NAME)
    if(NOT name STREQUAL "_abi.py")
        file(CREATE_LINK ${source} ${PROJECT_BINARY_DIR}/python/kermes/${name} SYMBOLIC)
    endif()
endforeach()
add_custom_target(kermes_python ALL DEPENDS kermes_python_abi kermes_shared)
file(GLOB kermes_python_tests CONFIGURE_DEPENDS python/tests/test_*.py)
foreach(source IN LISTS kermes_python_tests)
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "python/" name ${name})
    add_test(NAME ${name} COMMAND ${KERMES_PYTHON} -m pytest -q -p no:cacheprovider ${source})
    set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS python
        ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1;KERMES_LIBRARY=$<TARGET_FILE:kermes_shared>;KERMES=$<TARGET_FILE:kermes>")
endforeach()
